"""Arithmetic with one constant for all folds into the layer behind it, and computes what it did."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.note import Note
from onnxq.graph.passes.fold_forward import fold_forward
from onnxq.graph.passes.normalize import normalize
from onnxq.options import Options
from onnxq.planning.cancelling import may_cancel
from onnxq.prepare import Prepared
from tests.graph.helpers import Array, apply, build, ops, random
from tests.models import f32

TOLERANCE = 2e-6
CONSTANTS: dict[str, Array] = {
    "w": random(6, 4, 3, 3),
    "w1": random(6, 4, 1, 1),
    "wt": random(4, 6, 3, 3),
    "g": random(4, 6),
    "gt": random(6, 4),
    "k": random(6, seed=1),
    "a": np.float32(0.7),
    "b": f32([-2.5]),
    "nothing": np.float32(0),
    "channels": 1 + random(4, 1, 1, seed=3) ** 2,
}
PICTURE = "g (float[2,4,6,6] i) => (float[a,b,c,d] y)"
ROWS = "g (float[5,4] i) => (float[a,b] y)"
FEEDS = {PICTURE: {"i": random(2, 4, 6, 6)}, ROWS: {"i": random(5, 4)}}


def change(model: ir.Model) -> list[Note]:
    return [*normalize(model, min_opset=14), *fold_forward(model, may_cancel)]


def folded(signature: str, body: str) -> list[str]:
    """The operators that are left."""
    text = f"{signature} {{ x = Tanh(i) \n {body} }}"
    model, _ = apply(change, build(text, **CONSTANTS), FEEDS[signature], tolerance=TOLERANCE)
    return ops(model)[1:]


@pytest.mark.parametrize(
    ("signature", "layer"),
    [
        (PICTURE, "Conv(m, w)"),
        (PICTURE, "Conv<pads = [1,1,1,1]>(m, w, k)"),
        (PICTURE, "ConvTranspose(m, wt, k)"),
        (ROWS, "Gemm<alpha = 0.5, beta = 2.0>(m, g, k)"),
        (ROWS, "Gemm<transB = 1>(m, gt)"),
        (ROWS, "MatMul(m, g)"),
    ],
)
@pytest.mark.parametrize("factor", ["Mul(x, a)", "Mul(b, x)", "Div(x, b)"])
def test_a_factor(signature: str, layer: str, factor: str) -> None:
    assert folded(signature, f"m = {factor} \n y = {layer}") == [layer.split("(")[0].split("<")[0]]


@pytest.mark.parametrize("offset", ["Add(x, a)", "Add(b, x)", "Sub(x, b)", "Sub(b, x)"])
@pytest.mark.parametrize(
    ("signature", "layer", "left"),
    [
        (PICTURE, "Conv(m, w, k)", ["Conv"]),
        (PICTURE, 'Conv<auto_pad = "SAME_UPPER">(m, w1)', ["Conv"]),
        (ROWS, "Gemm(m, g)", ["Gemm"]),
        (ROWS, "MatMul(m, g)", ["MatMul", "Add"]),
    ],
)
def test_an_offset_where_nothing_is_padded(signature: str, layer: str, left: list[str], offset: str) -> None:
    assert folded(signature, f"m = {offset} \n y = {layer}") == left


def test_an_offset_in_front_of_a_product_with_a_bias() -> None:
    assert folded(ROWS, "m = Add(x, a) \n p = MatMul(m, g) \n y = Add(p, k)") == ["MatMul", "Add"]


@pytest.mark.parametrize("offset", ["Add(m, b)", "Add(b, m)", "Sub(m, b)"])
def test_a_factor_in_front_of_an_offset(offset: str) -> None:
    body = f"m = Mul(x, a) \n n = {offset} \n y = "
    assert folded(PICTURE, f"{body}Conv(n, w)") == ["Conv"]
    assert folded(PICTURE, f"{body}Conv<pads = [1,1,1,1]>(n, w)") == [offset[:3], "Conv"]


@pytest.mark.parametrize(
    "body",
    [
        "l = Add(x, a) \n m = Add(b, l) \n y = Conv(m, w)",
        "k0 = Mul(x, a) \n l = Sub(b, k0) \n m = Div(l, b) \n y = Conv(m, w)",
        "k0 = Add(x, a) \n l = Sub(b, k0) \n m = Mul(l, a) \n y = Conv(m, w, k)",
    ],
)
def test_a_row_of_nodes(body: str) -> None:
    assert folded(PICTURE, body) == ["Conv"]


def test_a_tensor_of_other_numbers_has_another_name() -> None:
    text = f"{PICTURE} {{ x = Tanh(i) \n m = Mul(x, a) \n n = Add(m, b) \n y = Conv<pads = [1,1,1,1]>(n, w) }}"
    model, notes = apply(change, build(text, **CONSTANTS), FEEDS[PICTURE], tolerance=TOLERANCE)
    assert [node.outputs[0].name for node in model.graph] == ["x", "n_unscaled", "y"]
    assert Note("fold_forward", "", "1 element-wise nodes folded into the layers behind them") in notes


@pytest.mark.parametrize(
    "body",
    [
        "m = Mul(x, a) \n n = Conv(m, w1) \n o = Conv(m, w1) \n y = Add(n, o)",  # two readers
        "m = Mul(x, channels) \n y = Conv(m, w)",
        "m = Mul(x, a) \n n = Relu(m) \n y = Conv(n, w)",
        "m = Sub(b, x) \n y = Conv<pads = [1,1,1,1]>(m, w)",
        "m = Mul(x, nothing) \n n = Add(m, b) \n y = Conv<pads = [1,1,1,1]>(n, w)",
        "m = Add(x, a) \n y = ConvTranspose(m, wt)",
        "m = Mul(x, a) \n n = Conv(m, w1) \n o = Conv(x, w1) \n y = Add(n, o)",  # a weight that two layers have
    ],
)
def test_what_stays(body: str) -> None:
    text = f"{PICTURE} {{ x = Tanh(i) \n {body} }}"
    before = load(build(text, **CONSTANTS))
    normalize(before, min_opset=14)
    assert folded(PICTURE, body) == ops(before)[1:]


def test_an_output_of_the_model_stays() -> None:
    text = "g (float[5,4] i) => (float[5,4] m, float[5,6] y) { x = Tanh(i) \n m = Mul(x, a) \n y = MatMul(m, g) }"
    assert ops(apply(change, build(text, **CONSTANTS), FEEDS[ROWS], tolerance=0)[0]) == ["Tanh", "Mul", "MatMul"]


def test_a_gelu_stays_whole() -> None:
    body = "d = Div(x, root) \n e = Erf(d) \n p = Add(e, one) \n q = Mul(x, p) \n m = Mul(q, half) \n y = MatMul(m, g)"
    constants = {**CONSTANTS, "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    model, _ = apply(change, build(f"{ROWS} {{ x = Tanh(i) \n {body} }}", **constants), FEEDS[ROWS], tolerance=0)
    assert ops(model) == ["Tanh", "Div", "Erf", "Add", "Mul", "Mul", "MatMul"]


def test_in_a_branch() -> None:
    text = """g (float[5,4] i, bool c) => (float[5,6] y) {
        x = Tanh(i)
        y = If (c) <then_branch = t () => (float[5,6] p) { m = Mul(x, a) \n p = MatMul(m, g) },
                    else_branch = e () => (float[5,6] q) { n = Add(x, b) \n q = MatMul(n, g) }> }"""
    for chosen in (True, False):
        feeds = {**FEEDS[ROWS], "c": np.array(chosen)}
        apply(change, build(text, **CONSTANTS), feeds, tolerance=TOLERANCE)


def test_where_somebody_has_scales_tensors_stay() -> None:
    proto = build(f"{PICTURE} {{ x = Tanh(i) \n m = Div(x, b) \n y = Conv(m, w) }}", **CONSTANTS)
    assert ops(Prepared(proto, Options()).model) == ["Tanh", "Conv"]
    assert ops(Prepared(proto, Options(), as_scaled=True).model) == ["Tanh", "Div", "Conv"]


@pytest.mark.parametrize(
    "before", ["m = Div(i, b)", "n = Add(i, b) \n o = Transpose<perm = [0,1,3,2]>(n) \n m = Mul(a, o)"]
)
def test_what_scales_an_input_stays(before: str) -> None:
    text = f"{PICTURE} {{ {before} \n y = Conv(m, w) }}"
    model, _ = apply(change, build(text, **CONSTANTS), FEEDS[PICTURE], tolerance=0)
    assert ops(model) == [line.split(" = ")[1].split("(")[0].split("<")[0] for line in before.split("\n")] + ["Conv"]


@pytest.mark.parametrize("function", ["Exp(i)", "Sigmoid(i)", "Softplus(i)", "Cos(i)", "Clip(i, a)"])
def test_an_offset_that_may_cancel_stays(function: str) -> None:
    """A grid for exp(x), all of whose numbers are about 1, would be too coarse for exp(x) - 1."""
    for arithmetic, left in (("Add(p, b)", ["Add"]), ("Mul(p, b)", [])):
        text = f"{PICTURE} {{ p = {function} \n m = {arithmetic} \n y = Conv(m, w) }}"
        model, _ = apply(change, build(text, **CONSTANTS), FEEDS[PICTURE], tolerance=TOLERANCE)
        assert ops(model)[1:] == [*left, "Conv"]


@pytest.mark.parametrize(
    "function",
    [
        "p = Relu(i)",
        "p = Clip(i, b, a)",
        "t = Relu(i) \n q = Mul(t, t) \n p = Mul(q, a)",
        "t = Relu(i) \n p = Pow(t, two)",
        "t = Sigmoid(i) \n p = Mul(i, t)",
        "t = HardSwish(i) \n p = Transpose<perm = [0,1,3,2]>(t)",
    ],
)
def test_an_offset_behind_a_function_that_is_zero_somewhere(function: str) -> None:
    text = f"{PICTURE} {{ {function} \n m = Add(p, b) \n y = Conv(m, w) }}"
    model, _ = apply(change, build(text, **CONSTANTS, two=np.float32(2)), FEEDS[PICTURE], tolerance=TOLERANCE)
    assert "Add" not in ops(model)
