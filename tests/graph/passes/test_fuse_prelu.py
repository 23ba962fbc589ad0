"""A chain of operators that computes PRelu becomes the operator; nothing else is taken for it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.fuse_prelu import fuse_prelu
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random
from tests.models import f32

FEEDS = {"u": random(2, 8, 3)}
CONSTANTS = {
    "slope": 0.3 * random(3, seed=1),
    "steep": f32([0.2, 1.5, 0.3]),
    "half": f32(0.5),
    "zero": f32(0),
    "few": f32([0.2]),
    "wide": random(2, 1, 8, 3),
    "deep": f32(0).reshape(1, 1, 1, 1),
}

CHAINS = [
    "b = Abs(x) \n d = Sub(x, b) \n m = Mul(slope, d) \n h = Mul(m, half) \n t = Add(p, h)",
    "b = Abs(x) \n d = Sub(x, b) \n m = Mul(d, slope) \n t = Add(m, p)",
    "n = Neg(x) \n r = Relu(n) \n m = Mul(r, slope) \n t = Add(p, m)",
    "n = Neg(x) \n r = Relu(n) \n m = Mul(r, slope) \n t = Sub(p, m)",
    "n = Min(x, zero) \n m = Mul(slope, n) \n t = Add(p, m)",
]
OTHERS = [
    "b = Abs(x) \n d = Sub(b, x) \n m = Mul(slope, d) \n t = Add(p, m)",  # the other way round
    "n = Neg(u) \n r = Relu(n) \n m = Mul(r, slope) \n t = Add(p, m)",  # of another tensor
    "b = Abs(u) \n d = Sub(x, b) \n m = Mul(slope, d) \n t = Add(p, m)",
    "b = Abs(x) \n d = Sub(u, b) \n m = Mul(slope, d) \n t = Add(p, m)",
    "n = Min(zero, u) \n m = Mul(slope, n) \n t = Add(p, m)",
    "n = Erf(x) \n r = Relu(n) \n m = Mul(r, slope) \n t = Add(p, m)",  # of a function of it
    "n = Min(x, half) \n m = Mul(slope, n) \n t = Add(p, m)",  # bends elsewhere
    "n = Neg(x) \n r = Relu(n) \n m = Mul(r, slope) \n t = Sub(m, p)",  # falls
    "n = Neg(x) \n r = Relu(n) \n m = Mul(r, slope) \n a = Add(p, m) \n t = Mul(a, m)",  # read elsewhere
    "m = Mul(x, slope) \n t = Max(p, m)",
    "m = Mul(x, steep) \n t = Max(x, m)",  # above 1 it is the other half that has the slope
    "m = Mul(x, slope) \n t = Max(x, m, u)",
    "m = Mul(x, slope) \n t = Min(x, m)",
]


def fuse(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return fuse_prelu(model)


def text(body: str) -> str:
    return f"g (float[2,8,3] u) => (float[2,8,3] y) {{ x = Tanh(u) \n p = Relu(x) \n {body} \n y = Sin(t) }}"


@pytest.mark.parametrize("body", CHAINS)
def test_the_operator_takes_the_place_of_the_chain(body: str) -> None:
    model, notes = apply(fuse, build(text(body), **CONSTANTS), FEEDS)
    assert ops(model) == ["Tanh", "PRelu", "Sin"]
    assert notes == [Note("fuse_prelu", "", "1 chains replaced by PRelu")]


@pytest.mark.parametrize("body", ["m = Mul(slope, x) \n t = Max(x, m)", "m = Mul(x, slope) \n t = Max(m, x)"])
def test_the_larger_of_a_tensor_and_a_multiple_of_it_is_one(body: str) -> None:
    model, _ = apply(fuse, build(text(body).replace("p = Relu(x)", ""), **CONSTANTS), FEEDS)
    assert ops(model) == ["Tanh", "PRelu", "Sin"]


def test_one_slope_for_all_is_a_leaky_relu() -> None:
    body = "n = Min(x, zero) \n m = Mul(n, few) \n t = Add(p, m)"
    assert ops(apply(fuse, build(text(body), **CONSTANTS), FEEDS)[0]) == ["Tanh", "LeakyRelu", "Sin"]


@pytest.mark.parametrize("body", OTHERS)
def test_other_chains_stay(body: str) -> None:
    proto = build(text(body), **CONSTANTS)
    before = [node.op_type for node in proto.graph.node]
    assert ops(apply(fuse, proto, FEEDS)[0]) == before


def test_a_zero_of_more_axes_stays() -> None:
    """It gives the result another shape."""
    body = "n = Min(x, deep) \n m = Mul(slope, n) \n t = Add(p, m)"
    proto = build(text(body).replace("float[2,8,3] y", "float[1,2,8,3] y"), **CONSTANTS)
    assert "PRelu" not in ops(apply(fuse, proto, FEEDS)[0])


def test_a_slope_that_makes_more_of_it_stays() -> None:
    body = "n = Neg(x) \n r = Relu(n) \n m = Mul(r, wide) \n t = Add(p, m)"
    proto = build(text(body).replace("float[2,8,3] y", "float[2,2,8,3] y"), **CONSTANTS)
    assert "PRelu" not in ops(apply(fuse, proto, FEEDS)[0])
