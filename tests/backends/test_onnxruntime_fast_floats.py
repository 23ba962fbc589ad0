"""What onnxruntime computes slowly in float is written with what it computes fast, and computes the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.graph.files.save import to_proto
from tests.graph.helpers import run
from tests.models import build, f32, feeds_for, normal

WIDE = f32([0, -0.0, 1e-30, -1e-30, 1e-8, -1e-8, 0.3, -0.3, 5, -5, 15, -15, 19, 21, -21, 60, -60, 88, -88, 1e4, -1e4])
"""What the formulas of activations might get wrong."""


def made(model: onnx.ModelProto, feeds: Any) -> onnx.ModelProto:
    """What onnxq writes of a model that stays float."""
    return to_proto(onnxq.quantize(model, feeds, options=Options(exclude=("*",))).rendered())


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def of_size(values: NDArray[np.float32], *shape: int) -> NDArray[np.float32]:
    return np.resize(values, shape)


def assert_same(model: onnx.ModelProto, result: onnx.ModelProto, x: NDArray[np.float32], rtol: float = 2e-6) -> None:
    want, got = run(model, {"x": x})[0], run(result, {"x": x})[0]
    assert got.shape == want.shape and np.isfinite(want).all()
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(float(np.abs(want).max(initial=0)), 1e-3) / 10)


@pytest.mark.parametrize(
    "formula",
    [
        "Elu (x)",
        "Elu <alpha = 0.5> (x)",
        "Selu (x)",
        "Celu (x)",
        "Softplus (x)",
        "Mish (x)",
        "LRN <size = 5> (x)",
        "LRN <size = 7, alpha = 0.2, beta = 0.5, bias = 2.0> (x)",
        "LRN <size = 3, alpha = 0.1, beta = 1.0> (x)",
    ],
)
@pytest.mark.parametrize("shape", ["1, 16, 16, 16", "n, 16, h, w"])
def test_activations(formula: str, shape: str) -> None:
    model = build(f"(float[{shape}] x) => (float[{shape}] y) {{ y = {formula} }}", opset=18)
    feeds = feeds_for(model, n=1, h=16, w=16)
    result = made(model, feeds)
    assert formula.split()[0] not in ops(result)
    for x in (feeds[0]["x"], of_size(WIDE if "LRN" not in formula else feeds[0]["x"], 1, 16, 16, 16)):
        assert_same(model, result, x)


def test_softplus_of_what_is_far_below_zero_is_not_zero() -> None:
    """Log(1 + Exp(x)) would be: a logarithm behind it, or a division by it, gives infinity then."""
    model = build("(float[1, 2048] x) => (float[1, 2048] y) { a = Softplus (x)\n y = Log (a) }", opset=18)
    x = np.linspace(-80, 30, 2048, dtype=np.float32).reshape(1, 2048)
    result = made(model, feeds_for(model))
    assert "Softplus" not in ops(result)
    np.testing.assert_allclose(run(result, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exponent", [-1.0, 0.5, -0.5, 0.75, 1.5, 4.0, -4.0])
def test_powers_that_are_roots_and_products(exponent: float) -> None:
    text = "(float[1, 16, 16, 16] x) => (float[1, 16, 16, 16] y) { a = Abs (x)\n b = Add (a, c)\n y = Pow (b, p) }"
    model = build(text, c=np.float32(0.01), p=np.float32(exponent))
    feeds = feeds_for(model)
    result = made(model, feeds)
    assert "Pow" not in ops(result)
    assert_same(model, result, feeds[0]["x"])


@pytest.mark.parametrize("exponent", [f32(1.7), f32([0.5] * 16), f32([[[[[0.5]]]]])])
def test_other_powers_stay(exponent: NDArray[np.float32]) -> None:
    model = build("(float[1, 16, 16, 16] x) => (float[a, b, c, d] y) { y = Pow (x, p) }", p=exponent)
    assert ops(made(model, feeds_for(model, **dict.fromkeys("abcd", 16))))["Pow"] == 1


def test_a_mish_in_pieces() -> None:
    text = """(float[1, 16, 16, 16] x) => (float[1, 16, 16, 16] y) {
        a = Softplus (x)
        b = Tanh (a)
        y = Mul (x, b)
    }"""
    model = build(text)
    result = made(model, feeds_for(model))
    assert not {"Softplus", "Tanh"} & set(ops(result)) and ops(result)["Exp"] == 1
    assert_same(model, result, of_size(WIDE, 1, 16, 16, 16))


REDUCTIONS = ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")


def reduction(
    op: str, shape: str, opset: int, axis: int = 1, keep: int = 1, behind: str = "a, b, c"
) -> onnx.ModelProto:
    as_input = opset >= (13 if op == "ReduceSum" else 18)
    inputs, more = ("x, axes", "") if as_input else ("x", f", axes = [{axis}]")
    text = f"(float[{shape}] x) => (float[{behind}] y) {{ y = {op} <keepdims = {keep}{more}> ({inputs}) }}"
    return build(text, opset=opset, axes=np.array([axis], np.int64)) if as_input else build(text, opset=opset)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("opset", "shape"), [(13, "1, 24, 20, 20"), (17, "1, 24, h, 32"), (20, "n, 24, h, w")])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_over_channels(op: str, opset: int, shape: str, keep: int) -> None:
    model = reduction(op, shape, opset, keep=keep, behind="a, b, c, d" if keep else "a, b, c")
    feeds = feeds_for(model, n=1, h=20, w=20)
    result = made(model, feeds)
    assert_same(model, result, feeds[0]["x"])
    if op in ("ReduceMax", "ReduceMin") or shape.startswith("n"):
        assert ops(result)[op] + (op == "ReduceSumSquare") == 2 and "MatMul" not in ops(result)
    else:
        assert op not in ops(result) and ops(result)["MatMul"] == 1


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax"])
def test_a_free_batch_may_be_larger_or_empty(op: str) -> None:
    for shape in ("n, 24, 20, 20", "n, 24, h, 32", "n, 24, h"):
        rank = shape.count(",") + 1
        model = reduction(op, shape, 18, behind=", ".join("abcd"[:rank]))
        result = made(model, feeds_for(model, n=1, h=400))
        for n in (3, 0):
            x = feeds_for(model, n=n, h=17)[0]["x"]
            assert_same(model, result, x)


@pytest.mark.parametrize(
    ("shape", "axis"), [("2, 24, 20, 20", 1), ("1, 24, 20, 20", 2), ("1, 24, 20, 20", 3), ("1, 4, 4, 4", 1)]
)
def test_reductions_that_are_fast_or_small_stay(shape: str, axis: int) -> None:
    model = reduction("ReduceMean", shape, 18, axis, behind="a, b, c, d")
    assert ops(made(model, feeds_for(model))) == {"ReduceMean": 1}


def test_the_extreme_of_a_prime_number_of_channels_stays() -> None:
    model = reduction("ReduceMax", "1, 19, 24, 24", 18, behind="a, b, c, d")
    assert ops(made(model, feeds_for(model))) == {"ReduceMax": 1}


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", ["1, 16, 4, 200", "n, 19, h, w", "2, 12, 400", "1, 21, h, 33"])
@pytest.mark.parametrize("axis", [1, None])
def test_softmax_over_channels(op: str, shape: str, axis: int | None) -> None:
    rank = shape.count(",") + 1
    model = build(
        f"(float[{shape}] x) => (float[{shape}] y) {{ y = {op} <axis = {1 - rank if axis is None else axis}> (x) }}",
        opset=17,
    )
    feeds = feeds_for(model, n=1, h=33, w=33)
    result = made(model, feeds)
    assert op not in ops(result)
    for factor in (1, 100):
        assert_same(model, result, feeds[0]["x"] * np.float32(factor), rtol=1e-5)


def test_softmax_over_the_last_axis_stays() -> None:
    model = build("(float[1, 16, 4, 200] x) => (float[1, 16, 4, 200] y) { y = Softmax <axis = -1> (x) }", opset=17)
    assert ops(made(model, feeds_for(model))) == {"Softmax": 1}


def test_integers_of_a_softmax_stay_integers() -> None:
    model = build("(float[1, 16, 20, 20] x) => (float[1, 16, 20, 20] y) { y = Softmax <axis = 1> (x) }", opset=17)
    result = to_proto(onnxq.quantize(model, feeds_for(model), options=Options(placement="all")).rendered())
    assert ops(result)["Softmax"] == 1 and ops(result)["QuantizeLinear"] == 2


@pytest.mark.parametrize(("before", "changed"), [("Conv (x, w1, b1)", False), ("Identity (x)", True)])
def test_between_integer_convolutions_reductions_stay(before: str, changed: bool) -> None:
    """onnxruntime computes them with the channels last there, where they are fast, and moves none past others."""
    model = build(
        f"""(float[1, 32, 32, 32] x) => (float[1, 32, 32, 32] y) {{
            a = {before}
            [mean] m = ReduceMean <axes = [1]> (a)
            [sub] d = Sub (a, m)
            [soft] s = Softmax <axis = 1> (d)
            [times] e = Mul (d, s)
            [last] y = Conv (e, w2, b1)
        }}""",
        w1=normal(32, 32, 1, 1, scale=0.1),
        w2=normal(32, 32, 1, 1, scale=0.1, seed=1),
        b1=normal(32, seed=2),
    )
    options = Options(exclude=("mean", "sub", "soft", "times"), placement="compute")
    made = onnxq.quantize(model, feeds_for(model), options=options)
    assert "last" in made.plan.quantized
    found = ops(to_proto(made.rendered()))
    assert found["MatMul"] == (2 if changed else 0) and found["ReduceMean"] == found["Softmax"] == (0 if changed else 1)


LINEAR = """(float[n, {0}, 16, 20] x) => (float[n, {0}, h, w] y) {{
    y = Resize <mode = "linear", coordinate_transformation_mode = "{1}"> (x, , {2})
}}"""


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("by_sizes", [False, True])
def test_a_bilinear_resize_has_the_channels_last(mode: str, by_sizes: bool) -> None:
    given: NDArray[Any] = np.array([1, 12, 40, 31]) if by_sizes else f32([1, 1, 2.5, 1.55])
    text = LINEAR.format(12, mode, ", s" if by_sizes else "s").replace("[n,", "[1,")
    model = build(text, s=given)
    feeds = feeds_for(model)
    result = made(model, feeds)
    assert ops(result) == {"Transpose": 2, "Reshape": 2, "Resize": 1}
    np.testing.assert_array_equal(run(result, feeds[0])[0], run(model, feeds[0])[0])


@pytest.mark.parametrize(
    ("channels", "factors"), [(12, (1.2, 1.2)), (12, (0.5, 0.5)), (3, (2.0, 2.0)), (10, (2.0, 2.0))]
)
def test_a_resize_that_transposes_would_slow_down_stays(channels: int, factors: tuple[float, float]) -> None:
    model = build(LINEAR.format(channels, "half_pixel", "s"), s=f32([1, 1, *factors]))
    assert ops(made(model, feeds_for(model))) == {"Resize": 1}


@pytest.mark.parametrize(("more", "written"), [("antialias = 0", True), ("antialias = 1", False)])
def test_a_resize_as_newer_exporters_write_it(more: str, written: bool) -> None:
    attributes = f'"linear", keep_aspect_ratio_policy = "stretch", {more},'
    text = LINEAR.format(12, "half_pixel", "s").replace('"linear",', attributes)
    model = build(text, opset=18, s=f32([1, 1, 2, 3]))
    result = made(model, feeds_for(model))
    assert ops(result)["Transpose"] == (2 if written else 0)
    assert_same(model, result, feeds_for(model)[0]["x"])


def test_a_free_batch_is_resized_with_the_channels_last_and_may_be_larger() -> None:
    model = build(LINEAR.format(16, "half_pixel", "s"), s=f32([1, 1, 2, 2]))
    result = made(model, feeds_for(model))
    assert ops(result)["Transpose"] == 2
    for n in (3, 1):
        assert_same(model, result, feeds_for(model, n=n)[0]["x"])
