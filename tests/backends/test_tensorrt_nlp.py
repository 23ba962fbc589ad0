"""The placement of TensorRT for transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import onnxq
from onnxq.graph.files.save import to_proto
from tests.backends.test_tensorrt import plan, quantized_inputs, reasons
from tests.contract import infer, sqnr
from tests.models import build, normal

Array = NDArray[Any]


def encoder() -> onnx.ModelProto:
    """Embeddings, an attention with a mask, and a residual."""
    return build(
        """(int64[1, 8] ids, float[1, 8, 8] mask) => (float[1, 8, 16] y) {
            words = Gather (table, ids)
            x = Add (words, positions)
            z = Add (words, x)
            q = MatMul (z, wq)
            k = MatMul (z, wk)
            kt = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul (q, kt)
            m = Add (s, mask)
            p = Softmax <axis = -1> (m)
            o = MatMul (p, z)
            l = MatMul (o, wo)
            lb = Add (l, bo)
            y = Add (lb, z)
        }""",
        table=normal(32, 16, scale=1.0),
        positions=normal(1, 8, 16, scale=1.0),
        wq=normal(16, 16, seed=1),
        wk=normal(16, 16, seed=2),
        wo=normal(16, 16, seed=3),
        bo=normal(16),
    )


def test_for_transformers_residual_adds_are_quantized_at_both_inputs() -> None:
    found = plan(encoder(), "tensorrt_nlp")
    adds = {n for n, op in found.quantized.items() if op == "Add"}
    assert len(adds) == 1
    (add,) = adds
    assert {f"{add}:0", f"{add}:1"} <= quantized_inputs(found)
    why = [r for n, r in reasons(found).items() if n.startswith("Add")]
    assert sorted(why) == sorted(
        ["a sum of embeddings", "it adds a mask or a scaled tensor, in the kernel of its neighbours"]
        + ["adds a constant, in the kernel of the operator before it"] * 2
    )
    assert sum(op == "MatMul" for op in found.quantized.values()) == 5
    assert "Add" not in plan(encoder()).quantized.values()


def test_a_quantized_encoder_computes_what_the_float_one_does() -> None:
    rng = np.random.default_rng(0)
    feeds: list[dict[str, Array]] = [
        {"ids": rng.integers(0, 32, (1, 8)), "mask": np.zeros((1, 8, 8), np.float32)} for _ in range(6)
    ]
    q = onnxq.quantize(encoder(), feeds, backend="tensorrt_nlp")
    reference = infer(encoder(), feeds, optimize=False)["y"]
    assert sqnr(reference, infer(to_proto(q.rendered()), feeds, optimize=False)["y"]) > 18


def deep(adds: int) -> onnx.ModelProto:
    """A residual stream, each Add of which reads the one before it."""
    nodes = [f"h{i} = MatMul (x{i}, w) x{i + 1} = Add (x{i}, h{i})" for i in range(adds)]
    return build(
        f"(float[1, 4] x) => (float[1, 4] y) {{ x0 = MatMul (x, w) {' '.join(nodes)} y = Identity (x{adds}) }}",
        w=normal(4, 4),
    )


def test_a_residual_stream_may_be_of_any_depth() -> None:
    found = plan(deep(600), "tensorrt_nlp")
    assert sum(op == "Add" for op in found.quantized.values()) == 600


def test_a_sum_of_many_embeddings_is_told_however_it_is_added_up() -> None:
    rows = " ".join(f"e{i} = Gather (table, ids) s{i + 1} = Add (s{i}, e{i})" for i in range(600))
    model = build(
        f"(int64[1, 4] ids) => (float[1, 4, 4] y) {{ s0 = Gather (table, ids) {rows} y = Add (s600, s600) }}",
        table=normal(8, 4),
    )
    assert {why for name, why in reasons(plan(model, "tensorrt_nlp")).items() if "Add" in name} == {
        "a sum of embeddings"
    }
