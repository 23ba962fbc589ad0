"""Equal constants are stored once, and only those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from onnxq.graph.files.load import load
from onnxq.graph.passes.share import share_constants
from onnxq.graph.traverse import all_graphs
from tests.graph.helpers import apply, build, random

FEEDS = {"x": random(3, 16)}
W = random(16, 20)  # 1280 bytes


def two(v: np.ndarray, w: np.ndarray = W) -> onnx.ModelProto:
    text = "g (float[3,16] x) => (float[3,20] y) { a = MatMul(x, w) \n b = MatMul(x, v) \n y = Add(a, b) }"
    return build(text, w=w, v=v)


def stored(model: ir.Model) -> list[str]:
    return sorted(name for graph in all_graphs(model) for name in graph.initializers)


def test_a_copy_is_removed_and_its_readers_read_the_other() -> None:
    model, notes = apply(share_constants, two(W.copy()), FEEDS, tolerance=0)
    assert stored(model) == ["w"]
    assert [node.inputs[1].name for node in model.graph if node.op_type == "MatMul"] == ["w", "w"]  # type: ignore[union-attr]
    assert [note.message for note in notes] == ["1 copies of equal constants removed"]


def test_constants_that_differ_late_stay_apart() -> None:
    v = W.copy()
    v[-1, -1] += 1  # beyond the elements that are compared first
    model, notes = apply(share_constants, two(v), FEEDS, tolerance=0)
    assert stored(model) == ["v", "w"]
    assert notes == []


def test_nan_and_signed_zeros_are_compared_bit_by_bit() -> None:
    zeros = np.zeros_like(W)
    model, _ = apply(share_constants, two(-zeros, zeros), FEEDS, tolerance=0)
    assert stored(model) == ["v", "w"], "0 and -0 are different constants"
    nan = load(two(np.full_like(W, np.nan), np.full_like(W, np.nan)))
    share_constants(nan)
    assert stored(nan) == ["w"]


def test_equal_bytes_of_another_shape_or_type_stay_apart() -> None:
    text = """g (float[3,16] x, float[3,20] z) => (float[3,20] y) {
        a = MatMul(x, w) \n b = MatMul(z, v) \n c = Reshape(b, shape) \n d = MatMul(c, i) \n y = Add(a, d)
    }"""
    constants = {"w": W, "v": W.reshape(20, 16), "shape": np.array([3, 16]), "i": np.ones((16, 20), np.float32)}
    feeds = {"x": random(3, 16), "z": random(3, 20)}
    model, _ = apply(share_constants, build(text, **constants), feeds, tolerance=0)
    assert stored(model) == ["i", "shape", "v", "w"]


def test_small_constants_stay() -> None:
    small = random(16, 4)
    text = "g (float[3,16] x) => (float[3,4] y) { a = MatMul(x, w) \n b = MatMul(x, v) \n y = Add(a, b) }"
    model, _ = apply(share_constants, build(text, w=small, v=small), FEEDS, tolerance=0)
    assert stored(model) == ["v", "w"]


def test_a_constant_that_is_a_graph_output_keeps_its_name() -> None:
    text = "g (float[3,16] x) => (float[3,20] y, float[16,20] v) { y = MatMul(x, w) }"
    model, _ = apply(share_constants, build(text, w=W, v=W), FEEDS, tolerance=0)
    assert stored(model) == ["v", "w"]


def test_copies_in_branches_move_to_the_main_graph() -> None:
    text = """g (float[3,16] x, bool flag) => (float[3,20] y) {
        y = If (flag) <
            then_branch = yes () => (float[3,20] t) { t = MatMul(x, w1) },
            else_branch = no () => (float[3,20] e) { m = MatMul(x, w2) \n e = Neg(m) }
        >
    }"""
    proto = build(text)
    for attribute, name in zip(proto.graph.node[0].attribute, ("w1", "w2"), strict=True):
        attribute.g.initializer.append(numpy_helper.from_array(W, name))
    for flag in (True, False):
        model, _ = apply(share_constants, proto, {**FEEDS, "flag": np.array(flag)}, tolerance=0)
        assert stored(model) == list(model.graph.initializers), "one copy, in the main graph"
        assert len(stored(model)) == 1


def test_external_data_is_not_read(tmp_path: Path) -> None:
    proto = two(W.copy())
    convert_model_to_external_data(proto, location="weights.bin", size_threshold=100)
    onnx.save(proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    share_constants(model)
    assert stored(model) == ["v", "w"]
