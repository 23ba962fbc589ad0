from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.added_masks import added_masks
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random

LOWER = np.tril(np.ones((1, 6, 6), bool))


def added(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = added_masks(model)
    infer_shapes(model)
    return notes


@pytest.mark.parametrize("low", [-np.inf, -1e4, np.finfo(np.float32).min])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_causal_mask_becomes_a_constant(low: float, swapped: bool) -> None:
    branches = "m, x" if swapped else "x, m"
    text = f"g (float[2, 6, 6] x) => (float[2, 6, 6] y) {{ [choose] s = Where (c, {branches}) y = Softmax (s) }}"
    proto = build(text, c=~LOWER if swapped else LOWER, m=np.float32(low))
    model, notes = apply(added, proto, {"x": random(2, 6, 6)})
    assert ops(model) == ["Add", "Softmax"] and notes[0].pass_name == "added_masks"
    assert model.graph[0].name == "choose" and model.graph[0].outputs[0].name == "s"


def test_a_mask_of_the_data() -> None:
    text = "g (float[2, 6, 6] x, bool[1, 6, 6] c) => (float[2, 6, 6] y) { s = Where (c, x, m) y = Softmax (s) }"
    model, _ = apply(added, build(text, m=np.float32(-1e9)), {"x": random(2, 6, 6), "c": LOWER})
    assert ops(model) == ["Where", "Add", "Softmax"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 6, 6] x) => (float[2, 6, 6] y) { s = Where (c, x, few) y = Softmax (s) }",
        "g (float[2, 6, 6] x) => (float[2, 6, 6] y) { s = Where (c, x, m) y = Relu (s) }",
        "g (float[2, 6, 6] x) => (float[2, 6, 6] y, float[2, 6, 6] s) { s = Where (c, x, m) y = Softmax (s) }",
        "g (float[2, 6, 6] x, float m2) => (float[2, 6, 6] y) { s = Where (c, x, m2) y = Softmax (s) }",
    ],
)
def test_others_are_left(text: str) -> None:
    assert added(ir.from_proto(build(text, c=LOWER, m=np.float32(-1e9), few=np.float32(0)))) == []
