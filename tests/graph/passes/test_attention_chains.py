"""Attention, RotaryEmbedding and RMSNormalization written out compute what onnxruntime computes for the operator."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxq.graph.note import Note
from onnxq.graph.passes.write_out import COMPOSITE, write_out
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random
from tests.installed import needs

pytestmark = [needs("onnx", "1.19"), needs("onnxruntime", "1.32")]

HEADS, SIZE, WIDTH, ROWS, PAST = 4, 8, 6, 5, 3


def written(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return write_out(model, COMPOSITE)


def one(op: str, feeds: dict[str, NDArray[Any]], inputs: list[str], free: bool, **attributes: Any) -> onnx.ModelProto:
    """A model of one node, whose outputs are ``y``, ``key`` and ``value``; batch and rows free or fixed."""
    names = ["y", "key", "value"] if "past_k" in inputs else ["y"]
    node = helper.make_node(op, inputs, names, name="it", **attributes)

    def info(name: str, array: NDArray[Any]) -> onnx.ValueInfoProto:
        shape: list[int | str] = list(array.shape)
        if free and name in ("q", "k", "v", "x", "past_k", "past_v"):
            shape[0], shape[-2] = "batch", f"rows_{name}"
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

    shapes = {name: [f"{name}_{axis}" for axis in range(4)] for name in names}
    shapes["y"] = shapes["y"][: next(iter(feeds.values())).ndim]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node], "g", [info(*item) for item in feeds.items()], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


FORMS = [  # heads of keys, causal, mask, past, attributes
    (4, False, "", False, {}),
    (4, True, "", False, {}),
    (2, False, "float", False, {"softcap": 3.0}),
    (1, False, "bool", False, {"scale": 0.3}),
    (2, True, "bool", True, {}),
    (4, True, "float", True, {"softcap": 2.0}),
    (1, True, "", True, {}),
]


@pytest.mark.parametrize(("flat", "free"), list(product([True, False], repeat=2)))
@pytest.mark.parametrize(("shared", "causal", "mask", "past", "attributes"), FORMS)
def test_attention(
    shared: int, causal: bool, mask: str, past: bool, attributes: dict[str, Any], *, flat: bool, free: bool
) -> None:
    before, rows = PAST if past else 0, ROWS if causal else ROWS + 2

    def tensor(heads: int, length: int, size: int, seed: int) -> NDArray[np.float32]:
        return random(2, length, heads * size, seed=seed) if flat else random(2, heads, length, size, seed=seed)

    feeds: dict[str, NDArray[Any]] = {
        "q": tensor(HEADS, ROWS, SIZE, 1),
        "k": tensor(shared, rows, SIZE, 2),
        "v": tensor(shared, rows, WIDTH, 3),
    }
    inputs = ["q", "k", "v", "mask" if mask else "", *(["past_k", "past_v"] if past else [])]
    if mask == "float":
        feeds["mask"] = random(ROWS, rows + before, seed=4)
    elif mask:
        feeds["mask"] = random(ROWS, rows + before, seed=4) < 0.5
        feeds["mask"][:, 0] = True  # each query has a key
    if past:
        feeds |= {"past_k": random(2, shared, PAST, SIZE, seed=5), "past_v": random(2, shared, PAST, WIDTH, seed=6)}
    attributes = {**attributes, **({"q_num_heads": HEADS, "kv_num_heads": shared} if flat else {})}
    inputs = inputs if inputs[-1] else inputs[:3]
    proto = one("Attention", feeds, inputs, free, is_causal=int(causal), **attributes)
    model, _ = apply(written, proto, feeds, tolerance=1e-5)
    assert "Attention" not in ops(model) and ops(model).count("MatMul") == 2


@pytest.mark.parametrize(("flat", "free", "interleaved", "part", "positions"), list(product([True, False], repeat=5)))
def test_rotary_embedding(flat: bool, free: bool, interleaved: bool, part: bool, positions: bool) -> None:
    half = (4 if part else SIZE) // 2
    shape = (20, half) if positions else (2, ROWS, half)
    x = random(2, ROWS, HEADS * SIZE) if flat else random(2, HEADS, ROWS, SIZE)
    feeds: dict[str, NDArray[Any]] = {"x": x, "cos": random(*shape, seed=1), "sin": random(*shape, seed=2)}
    if positions:
        feeds["at"] = np.arange(2 * ROWS).reshape(2, ROWS) * 2 % 20
    attributes = {"interleaved": int(interleaved), **({"num_heads": HEADS} if flat else {})}
    attributes |= {"rotary_embedding_dim": 4} if part else {}
    model, _ = apply(written, one("RotaryEmbedding", feeds, list(feeds), free, **attributes), feeds, tolerance=1e-5)
    assert "RotaryEmbedding" not in ops(model)


@pytest.mark.parametrize("axis", [-1, -2, 1, 2])
def test_rms_normalization(axis: int) -> None:
    text = f"""g (float[N, 4, 8] x) => (float[N, 4, 8] y) {{
        y = RMSNormalization <axis = {axis}, epsilon = 0.01> (x, s) }}"""
    proto = build(text, opset=23, ir_version=11, s=random(8))
    model, notes = apply(written, proto, {"x": random(2, 4, 8)}, tolerance=1e-5)
    assert ops(model) == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    assert [note.message for note in notes] == ["written out: 1 RMSNormalization"]


def test_what_only_the_operator_can_do_stays() -> None:
    """The scores as an output, and how many keys of each sample count."""
    feeds = {name: random(2, 4, ROWS, SIZE, seed=seed) for seed, name in enumerate("qkv")}
    scores = one("Attention", feeds, list(feeds), False)
    scores.graph.node[0].output.extend(["", "", "scores"])
    scores.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, HEADS, ROWS, ROWS]))
    counted = {**feeds, "n": np.asarray([3, 5])}
    mask = random(ROWS, ROWS, seed=4)
    free = one("Attention", {**feeds, "mask": mask}, [*feeds, "mask"], False)
    free.graph.input[3].type.tensor_type.ClearField("shape")
    infer_shapes(model := ir.from_proto(free))
    assert write_out(model, COMPOSITE) == [], "a mask may be shorter than the keys"
    count = one("Attention", counted, ["q", "k", "v", "", "", "", "n"], False)
    for proto, given in ((scores, feeds), (count, counted)):
        model, notes = apply(written, proto, given)
        assert ops(model) == ["Attention"] and notes == []
