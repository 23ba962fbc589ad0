"""Elementwise operators, reductions and comparisons give what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.installed import needs
from tests.models import f32, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

from tests.torch.ops.helpers import case

X = normal(2, 3, 4, scale=2.0)
UNIT = np.clip(normal(2, 3, 4, seed=3, scale=0.4), -0.9, 0.9)
POSITIVE = np.abs(X) + f32(0.5)


@pytest.mark.parametrize(
    "op",
    [
        "Abs", "Atan", "Asinh", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Celu", "Sigmoid", "Sign", "Sin", "Sinh", "Cosh",
        "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Elu <alpha = 0.5>", "LeakyRelu <alpha = 0.3>",
        "Shrink", "Shrink <lambd = 0.7, bias = 0.2>",
        "HardSigmoid <alpha = 0.1, beta = 0.4>", "Celu <alpha = 2.0>", "Softmax", "Softmax <axis = 1>", "LogSoftmax",
    ],
)  # fmt: skip
def test_unary(op: str) -> None:
    name, _, rest = op.partition(" ")
    case(f"(float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = {name} {rest} (x) }}", {"x": X})


@pytest.mark.parametrize("op", ["Acos", "Asin", "Atanh"])
def test_inverse_functions(op: str) -> None:
    case(f"(float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = {op} (x) }}", {"x": UNIT})


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_functions_of_positive_numbers(op: str) -> None:
    case(f"(float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = {op} (x) }}", {"x": POSITIVE})


def test_acosh() -> None:
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Acosh (x) }", {"x": POSITIVE + 1})


@pytest.mark.parametrize("how", ["none", "tanh"])
def test_gelu(how: str) -> None:
    text = f'(float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = Gelu <approximate = "{how}"> (x) }}'
    case(text, {"x": X}, opset=20)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"])
def test_two_tensors_are_broadcast(op: str) -> None:
    case(f"(float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = {op} (x, c) }}", {"x": X}, c=normal(3, 1, seed=2) + 3)


def test_powers_and_modulo() -> None:
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Pow (x, c) }", {"x": POSITIVE}, c=f32([0.5, 2, 3, 1]))
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Pow (x, c) }", {"x": X}, c=np.array(2, np.int64))
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Mod <fmod = 1> (x, c) }", {"x": X}, c=f32(0.7))
    numbers = np.array([-7, -3, 4, 9], np.int64)
    case("(int64[4] x) => (int64[4] y) { y = Mod (x, c) }", {"x": numbers}, c=np.array([3, -2, -3, 4], np.int64))
    case("(int64[4] x) => (int64[4] y) { y = Div (x, c) }", {"x": numbers}, c=np.array([2, 2, 3, 4], np.int64))


def test_prelu_and_clip() -> None:
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = PRelu (x, c) }", {"x": X}, c=f32([[0.1], [0.2], [-0.5]]))
    text = "(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Clip (x, lo, hi) }"
    case(text, {"x": X}, lo=f32(-0.5), hi=f32(1.0))
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Clip (x, , hi) }", {"x": X}, hi=f32(1.0))
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Clip (x) }", {"x": X})
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Clip <min = -0.5, max = 0.25> (x) }", {"x": X}, opset=10)


@pytest.mark.parametrize("op", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons(op: str) -> None:
    other = X.copy()
    other[0] += 1
    case(f"(float[2, 3, 4] x) => (bool[2, 3, 4] y) {{ y = {op} (x, c) }}", {"x": X}, c=other)


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    case(f"(bool[4] x) => (bool[4] y) {{ z = {op} (x, c)\n y = Not (z) }}", {"x": a}, c=b)


def test_choices() -> None:
    text = "(float[2, 3, 4] x) => (float[2, 3, 4] y) { m = Greater (x, z)\n y = Where (m, x, c) }"
    case(text, {"x": X}, z=f32(0.0), c=f32([1, 2, 3, 4]))


def test_odd_numbers_are_found() -> None:
    odd = f32([np.nan, np.inf, -np.inf, 1])
    case("(float[4] x) => (bool[4] y) { y = IsNaN (x) }", {"x": odd})
    case("(float[4] x) => (bool[4] y) { y = IsInf (x) }", {"x": odd})
    case("(float[4] x) => (bool[4] y) { y = IsInf <detect_negative = 0> (x) }", {"x": odd})


@pytest.mark.parametrize("to", [1, 6, 7, 9, 10, 11])
def test_casts(to: int) -> None:
    kinds = {1: "float", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "double"}
    case(f"(float[2, 3, 4] x) => ({kinds[to]}[2, 3, 4] y) {{ y = Cast <to = {to}> (x) }}", {"x": np.round(X)})


@pytest.mark.parametrize(
    "op",
    ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"],
)
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions(op: str, keep: int) -> None:
    shape = "2, 1, 1" if keep else "2"
    text = f"(float[2, 3, 4] x) => (float[{shape}] y) {{ y = {op} <keepdims = {keep}> (x, a) }}"
    case(text, {"x": X}, a=np.array([1, -1], np.int64))


@pytest.mark.parametrize("op", ["ReduceLogSum", "ReduceLogSumExp", "ReduceMean"])
def test_reductions_over_everything(op: str) -> None:
    case(f"(float[2, 3, 4] x) => (float[1, 1, 1] y) {{ y = {op} (x) }}", {"x": POSITIVE})


@needs("onnxruntime", "1.24")
def test_a_reduction_over_nothing() -> None:
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = ReduceMean <noop_with_empty_axes = 1> (x) }", {"x": X})


def test_reductions_of_older_operator_sets() -> None:
    text = "(float[2, 3, 4] x) => (float[2, 4] y) { y = ReduceMean <axes = [1], keepdims = 0> (x) }"
    case(text, {"x": X}, opset=13)
    case("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax <axis = 1> (x) }", {"x": X}, opset=11)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes(op: str, last: int) -> None:
    text = f"(float[2, 3, 4] x) => (int64[2, 1, 4] y) {{ y = {op} <axis = 1, select_last_index = {last}> (x) }}"
    case(text, {"x": np.round(X)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(exclusive: int, reverse: int) -> None:
    attributes = f"<exclusive = {exclusive}, reverse = {reverse}>"
    text = f"(float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = CumSum {attributes} (x, a) }}"
    case(text, {"x": X}, a=np.array(1, np.int64))


def test_products() -> None:
    case("(float[2, 3, 4] x) => (float[2, 3, 5] y) { y = MatMul (x, w) }", {"x": X}, w=normal(4, 5))
    case('(float[2, 3, 4] x) => (float[2, 4] y) { y = Einsum <equation = "bij->bj"> (x) }', {"x": X})
    text = "(float[3, 4] x) => (float[3, 5] y) { y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (x, w, b) }"
    case(text, {"x": X[0]}, w=normal(5, 4), b=normal(5))
    text = "(float[4, 3] x) => (float[3, 5] y) { y = Gemm <transA = 1> (x, w) }"
    case(text, {"x": X[0].T.copy()}, w=normal(4, 5))
