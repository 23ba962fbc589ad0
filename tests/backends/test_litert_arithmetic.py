"""Arithmetic, functions, types and products of matrices, as LiteRT's interpreter computes them, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.litert_interpreter import agrees, one, refusal
from tests.models import f32, normal

pytest.importorskip("ai_edge_litert")

_OTHERS = {
    "number": (),
    "one": (1,),
    "columns": (6,),
    "rows": (5, 1),
    "channels": (4, 1, 1),
    "pictures": (4, 5, 6),
    "samples": (2, 1, 1, 1),
    "all": (2, 4, 5, 6),
    "more axes": (3, 1, 4, 1, 1),
}
_CONVOLVED = "c = Conv (x, k)\n"
_KERNEL = normal(4, 3, 1, 1)


@pytest.mark.parametrize("others", _OTHERS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_two_operands_are_broadcast_behind_a_convolution(op: str, others: str) -> None:
    """Whose channels are at the end: constants and computed tensors, on both sides."""
    shape = _OTHERS[others]
    other = np.abs(np.asarray(normal(*shape))) + f32(0.5)
    agrees(one(f"{_CONVOLVED} y = {op} (c, w)", "2, 3, 5, 6", k=_KERNEL, w=other))
    agrees(one(f"{_CONVOLVED} e = Exp (c)\n y = {op} (w, e)", "2, 3, 5, 6", k=_KERNEL, w=other))
    if shape:
        sizes = ", ".join(map(str, shape))
        agrees(one(f"{_CONVOLVED} d = Exp (z)\n y = {op} (c, d)", "2, 3, 5, 6", sizes, k=_KERNEL))


@pytest.mark.parametrize(("left", "right"), [("3, 1", "1, 4"), ("1", "2, 3"), ("2, 1, 3, 1, 5", "4, 1, 5")])
@pytest.mark.parametrize("op", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_tensors_are_compared(op: str, left: str, right: str) -> None:
    agrees(one(f"{op} (x, z)", left, right.replace("4, 1", "1, 1"), results="bool[] y"))


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_truth_values(op: str) -> None:
    agrees(one(f"{op} (x, z)", "bool[2, 3]", "bool[3]", results="bool[] y"))
    agrees(one("Not (x)", "bool[2, 3]", results="bool[] y"))


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
def test_integers_that_stand_for_themselves(op: str, kind: str) -> None:
    agrees(one(f"{op} (x, z)", f"{kind}[2, 3]", f"{kind}[3]", results=f"{kind}[] y"))


@pytest.mark.parametrize(
    ("node", "kind"),
    [("Add", "int8"), ("Mul", "uint8"), ("Div", "int64"), ("Pow", "int64"), ("MatMul", "int32")],
)
def test_types_without_a_kernel_are_refused(node: str, kind: str) -> None:
    """LiteRT ends the process at the first, and computes the second wrongly."""
    model = one(f"{node} (x, z)", f"{kind}[3, 3]", f"{kind}[3, 3]", results=f"{kind}[] y")
    assert refusal(model).startswith("TensorFlow Lite has no ") and refusal(model).endswith(kind)


def test_remainders_have_the_sign_of_the_divisor() -> None:
    feeds = {"x": np.array([-3, 5, -7]), "z": np.array([2, -3, -4])}
    agrees(one("Mod (x, z)", "int64[3]", "int64[3]", results="int64[] y"), feeds)
    assert "sign of what is divided" in refusal(one("Mod <fmod = 1> (x, z)", "3", "3"))


@pytest.mark.parametrize("exponent", [2.0, 0.5, -0.5, 3.0, -1.0, 1.5])
def test_powers(exponent: float) -> None:
    agrees(one("a = Abs (x)\n y = Pow (a, e)", "2, 3", e=np.float32(exponent)))
    agrees(one("a = Abs (x)\n y = Pow (a, e)", "3", e=f32([[exponent]])))  # with an axis more
    agrees(one("Pow (x, e)", "3", e=np.array(3)))


def test_several_operands() -> None:
    for op in ("Max", "Min", "Sum", "Mean"):
        agrees(one(f"{op} (x, z, u)", "2, 3", "3", "2, 1"))
        agrees(one(f"{op} (x)", "2, 3"))


@pytest.mark.parametrize("shapes", [("2, 3", "2, 3", "3"), ("3", "2, 1", "2, 3"), ("1", "1", "2, 3"), ("2, 1",) * 3])
def test_one_of_two(shapes: tuple[str, str, str]) -> None:
    agrees(one("Where (x, z, u)", f"bool[{shapes[0]}]", *shapes[1:]))
    threshold = f"{_CONVOLVED} g = Greater (c, o)\n y = Where (g, c, h)"
    agrees(one(threshold, "2, 3, 5, 6", k=_KERNEL, o=f32(0.1), h=normal(4, 1, 1)))


@pytest.mark.parametrize("shape", ["4, 1, 1", "1", "2, 4, 5, 6"])
def test_slopes(shape: str) -> None:
    """Constant ones, and in float computed ones."""
    slopes = normal(*map(int, shape.split(",")))
    agrees(one(f"{_CONVOLVED} y = PRelu (c, s)", "2, 3, 5, 6", k=_KERNEL, s=slopes))
    agrees(one(f"{_CONVOLVED} y = PRelu (c, z)", "2, 3, 5, 6", shape, k=_KERNEL))


_FUNCTIONS = (
    "Abs Ceil Celu Cos Elu Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Reciprocal Relu Round Selu "
    "Sigmoid Sign Sin Softplus Softsign Tanh ThresholdedRelu"
)


@pytest.mark.parametrize("function", _FUNCTIONS.split())
def test_functions_of_one_tensor(function: str) -> None:
    for sizes in ("2, 3, 4, 5", "5", "2, 1, 2, 3, 2"):
        agrees(one(f"{function} (x)", sizes))
    agrees(one(f"{_CONVOLVED} y = {function} (c)", "2, 3, 5, 6", k=_KERNEL))


@pytest.mark.parametrize(
    "function",
    [
        "Celu <alpha = 0.5>",
        "Elu <alpha = 0.5>",
        'Gelu <approximate = "tanh">',
        "HardSigmoid <alpha = 0.3, beta = 0.4>",
        "LeakyRelu <alpha = -0.3>",
        "Selu <alpha = 1.1, gamma = 2.0>",
        "ThresholdedRelu <alpha = 0.4>",
    ],
)
def test_functions_with_numbers(function: str) -> None:
    agrees(one(f"{function} (x)", "2, 3, 4"))


def test_functions_of_positive_numbers() -> None:
    for function in ("Log", "Sqrt"):
        agrees(one(f"a = Abs (x)\n y = {function} (a)", "2, 3"))


def test_what_is_no_number() -> None:
    """As exporters say where attention has nothing to look at."""
    feeds = {"x": f32([[np.nan, 1, -np.inf], [0, np.nan, np.inf]])}
    agrees(one("IsNaN (x)", "2, 3", results="bool[] y"), feeds)
    agrees(one("n = IsNaN (x)\n y = Where (n, z, x)", "2, 3", z=f32(0)), feeds)


@pytest.mark.parametrize(("low", "high"), [(0, 6), (-1, 1), (0, 1), (0, None), (None, 0.3), (-0.5, 0.7), (None, None)])
def test_clips(low: float | None, high: float | None) -> None:
    bounds = {name: np.float32(number) for name, number in (("lo", low), ("hi", high)) if number is not None}
    given = f"c, {'lo' if low is not None else ''}, {'hi' if high is not None else ''}"
    agrees(one(f"{_CONVOLVED} y = Clip ({given})", "2, 3, 5, 6", k=_KERNEL, **bounds))


def test_clips_of_integers_and_by_computed_bounds() -> None:
    agrees(one("Clip (x, lo)", "int64[3]", lo=np.array(1), results="int64[] y"))
    assert refusal(one("m = ReduceMax <keepdims = 0> (z)\n y = Clip (x, , m)", "3", "4")) == "its bounds are computed"


@pytest.mark.parametrize("after", [("float", 1), ("int32", 6), ("int64", 7), ("bool", 9)])
@pytest.mark.parametrize("before", ["float", "int32", "int64", "bool", "uint8"])
def test_types_are_changed(before: str, after: tuple[str, int]) -> None:
    agrees(one(f"Cast <to = {after[1]}> (x)", f"{before}[2, 3]", results=f"{after[0]}[] y"))


@pytest.mark.parametrize("flags", ["", "transA = 1", "transB = 1", "transA = 1, transB = 1"])
@pytest.mark.parametrize("added", [None, (6,), (1, 6), (5, 6), (5, 1), (1,), ()])
def test_a_gemm_adds_what_it_may(flags: str, added: tuple[int, ...] | None) -> None:
    weight = normal(6, 4) if "transB" in flags else normal(4, 6)
    bias: dict[str, Any] = {} if added is None else {"b": normal(*added)}
    given = ", b" if added is not None else ""
    left, right = "4, 5" if "transA" in flags else "5, 4", ", ".join(map(str, weight.shape))
    where = f"<{flags}>" if flags else ""
    agrees(one(f"Gemm {where} (x, w{given})", left, w=weight, **bias))
    agrees(one(f"Gemm {where} (x, z{given})", left, right, **bias))


def test_a_gemm_that_is_multiplied_is_refused() -> None:
    assert "alpha or beta" in refusal(one("Gemm <alpha = 0.5> (x, w)", "5, 4", w=normal(4, 6)))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 2)])
def test_products_of_matrices(batch: tuple[int, ...]) -> None:
    def sizes(*last: int) -> str:
        return ", ".join(map(str, (*batch, *last)))

    agrees(one("MatMul (x, z)", sizes(5, 4), sizes(4, 6)))
    agrees(one("MatMul (x, w)", sizes(5, 4), w=normal(4, 6)))
    agrees(one("MatMul (x, w)", sizes(5, 4), w=normal(*batch, 4, 6)))
    agrees(one("MatMul (w, x)", sizes(5, 4), w=normal(3, 5)))
    agrees(one("MatMul (x, z)", sizes(5, 4), "4, 6"))


@pytest.mark.parametrize(("left", "right"), [("4", "4"), ("5, 4", "4"), ("4", "4, 6"), ("4", "2, 4, 3")])
def test_products_with_vectors(left: str, right: str) -> None:
    agrees(one("MatMul (x, z)", left, right))
    agrees(one("MatMul (x, w)", left, w=normal(*map(int, right.split(",")))))


@pytest.mark.parametrize(("left", "right"), [("1, 3, 5, 4", "2, 1, 4, 6"), ("2, 1, 3, 5, 4", "4, 1, 4, 6")])
def test_batches_of_products_are_broadcast(left: str, right: str) -> None:
    agrees(one("MatMul (x, z)", left, right))


@pytest.mark.parametrize("order", ["0, 1, 3, 2", "0, 2, 1, 3", "0, 3, 1, 2"])
def test_transposed_operands(order: str) -> None:
    turned = f"t = Transpose <perm = [{order}]> (x)\n"
    rows = [(2, 3, 4, 5)[int(axis)] for axis in order.split(",")]
    agrees(one(f"{turned} y = MatMul (t, w)", "2, 3, 4, 5", w=normal(rows[-1], 6)))
    agrees(one(f"{turned} y = MatMul (w, t)", "2, 3, 4, 5", w=normal(*rows[:2], 6, rows[2])))


def test_products_of_six_axes_are_refused() -> None:
    model = one("MatMul (x, z)", "1, 2, 2, 3, 5, 4", "1, 2, 2, 3, 4, 6")
    assert refusal(model) == "TensorFlow Lite's BATCH_MATMUL has 5 axes at most"
