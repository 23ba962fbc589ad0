"""Max and Min with a number behind a layer become Clip or Relu; those that mean something else stay."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.clip_bounds import clip_bounds
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random
from tests.models import f32

FEEDS = {"x": random(2, 4, 5, 5)}
CONSTANTS = {
    "w": random(3, 4, 1, 1, seed=1),
    "low": f32(-0.4).reshape(1, 1, 1, 1),
    "zero": f32([0]),
    "high": f32(0.6),
    "each": random(3, 1, 1, seed=2),
    "deep": f32(0.1).reshape(1, 1, 1, 1, 1),
}
INTO = "net (float[2,4,5,5] x) => (float[2,3,5,5] y)"


def clipped(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return clip_bounds(model)


@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        ("l = LeakyRelu(c) \n y = Max(l, low)", ["Conv", "LeakyRelu", "Clip"]),
        ("y = Max(zero, c)", ["Conv", "Relu"]),
        ("m = Max(c, zero) \n y = Min(high, m)", ["Conv", "Relu", "Clip"]),
    ],
)
def test_bounds_of_a_layer(body: str, becomes: list[str]) -> None:
    model = build(f"{INTO} {{ c = Conv(x, w) \n {body} }}", **CONSTANTS)
    assert ops(apply(clipped, model, FEEDS)[0]) == becomes


@pytest.mark.parametrize(
    "text",
    [
        f"{INTO} {{ c = Conv(x, w) \n y = Max(c, each) }}",
        "net (float[2,4,5,5] x) => (float[1,2,3,5,5] y) { c = Conv(x, w) \n y = Max(c, deep) }",
        "net (float[2,4,5,5] x) => (float[2,4,5,5] y) { n = ReduceL2(x) \n m = Max(n, high) \n y = Div(x, m) }",
        f"{INTO} {{ c = Conv(x, w) \n d = Neg(c) \n y = Max(c, d) }}",
    ],
)
def test_others_stay(text: str) -> None:
    model = build(text, **CONSTANTS)
    changed, notes = apply(clipped, model, FEEDS)
    assert ops(changed) == [node.op_type for node in model.graph.node] and not notes
