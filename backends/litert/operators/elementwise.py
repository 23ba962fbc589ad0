"""Arithmetic of two tensors, element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.placed import Order, Placed, RefusedError, plain
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS", "side_by_side"]

_ARITHMETIC = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV"}
_COMPARISONS = {
    "Equal": "EQUAL",
    "Greater": "GREATER",
    "GreaterOrEqual": "GREATER_EQUAL",
    "Less": "LESS",
    "LessOrEqual": "LESS_EQUAL",
    "And": "LOGICAL_AND",
    "Or": "LOGICAL_OR",
    "Xor": "NOT_EQUAL",
}
_SEVERAL = {"Max": "MAXIMUM", "Min": "MINIMUM", "Sum": "ADD"}


def side_by_side(t: Translation, values: list[ir.Value | None], rank: int) -> tuple[list[Placed], Order]:
    """Tensors with as many axes, in one order: that of the largest that is computed.

    Args:
        t: the translation.
        values: of the model; some may have fewer axes.
        rank: how many they are to have.
    """
    computed = [value for value in values if t.stored(value) is None]
    order = plain(rank)
    if computed:
        largest = max((t.read(value) for value in computed), key=lambda one: (len(one.shape), np.prod(one.shape)))
        order = _widened(largest, rank)
    return [_as_wide(t, value, rank, order) for value in values], order


def _widened(placed: Placed, rank: int) -> Order:
    """The order of a tensor, with axes in front."""
    more = rank - len(placed.order)
    return (*range(more), *(axis + more for axis in placed.order))


def _as_wide(t: Translation, value: ir.Value | None, rank: int, order: Order) -> Placed:
    if t.stored(value) is not None:
        return t.operand(value, order, rank)
    placed = t.read(value)
    wide = _widened(placed, rank)
    shape = (1,) * (rank - len(placed.shape)) + placed.shape
    return t.turned(t.reshaped(placed, shape, wide), order, (value.name if value is not None else None) or "")


def _pair(kind: str) -> Callable[[Translation, ir.Node], None]:
    def binary(t: Translation, node: ir.Node) -> None:
        """An operator of two tensors."""
        value = node.outputs[0]
        inputs, order = side_by_side(t, list(node.inputs), len(t.shape(value)))
        t.write(value, kind, [one.index for one in inputs], order)

    return binary


def several(t: Translation, node: ir.Node) -> None:
    """The largest, the smallest, the sum of some tensors; the first two compare integers on the grid of the result."""
    kind, value = _SEVERAL[node.op_type], node.outputs[0]
    inputs, order = side_by_side(t, list(node.inputs), len(t.shape(value)))
    grid = t.grid_of(value)
    if grid is not None and kind == "ADD":
        raise RefusedError("TensorFlow Lite rounds each sum of two integers")
    inputs = [t.requantized(one, grid) for one in inputs] if grid is not None else inputs
    if len(inputs) == 1:
        t.place(value, inputs[0])
        return
    first, *others, end = inputs
    for other in others:
        first = t.compute(kind, [first, other], grid=grid)
    t.write(value, kind, [first.index, end.index], order)


def mean(t: Translation, node: ir.Node) -> None:
    """The sum of some tensors by their number, in float."""
    if t.integer:
        raise RefusedError("TensorFlow Lite rounds each sum of two integers")
    value = node.outputs[0]
    (total, *others), order = side_by_side(t, list(node.inputs), len(t.shape(value)))
    for other in others:
        total = t.compute("ADD", [total, other])
    t.write(value, "MUL", [total.index, t.scalar(1 / len(node.inputs), total).index], order)


def power(t: Translation, node: ir.Node) -> None:
    """POW, or what is said better: a square, a square root, or one beneath 1."""
    value, exponent = node.outputs[0], t.numbers(node.inputs[1])
    rank = len(t.shape(value))
    kind: str | None = None
    if exponent is not None and exponent.size == 1 and value.dtype is ir.DataType.FLOAT:
        kind = {2.0: "SQUARE", 0.5: "SQRT", -0.5: "RSQRT"}.get(float(exponent.reshape(-1)[0]))
    if kind is not None:
        (x,), order = side_by_side(t, [node.inputs[0]], rank)
        t.write(value, kind, [x.index], order)
        return
    if exponent is None:
        _pair("POW")(t, node)
        return
    (x,), order = side_by_side(t, [node.inputs[0]], rank)
    wide = exponent.reshape((1,) * (rank - exponent.ndim) + exponent.shape).transpose(order)
    t.write(value, "POW", [x.index, t.constant("exponent", wide.astype(x.dtype.numpy())).index], order)


def select(t: Translation, node: ir.Node) -> None:
    """SELECT_V2."""
    value = node.outputs[0]
    inputs, order = side_by_side(t, list(node.inputs), len(t.shape(value)))
    t.write(value, "SELECT_V2", [one.index for one in inputs], order)


def slope(t: Translation, node: ir.Node) -> None:
    """PRELU, whose slopes are constant and have no axis of samples, or what is faster; see :func:`_sloped`.

    With slopes that are computed, in float, it is the sum of both sides.
    """
    value, slope = node.outputs[0], t.numbers(node.inputs[1])
    (x, slopes), order = side_by_side(t, list(node.inputs), len(t.shape(value)))
    if slope is not None and slope.size and _sloped(t, value, x, slopes, slope):
        return
    if t.stored(node.inputs[1]) is not None and slopes.shape[0] == 1 and order[0] == 0:
        alpha = t.reshaped_constant(slopes, slopes.shape[1:])
        t.write(value, "PRELU", [x.index, alpha.index], order)
        return
    if t.integer:
        raise RefusedError("its slopes are computed, or differ from sample to sample")
    zero = t.scalar(0.0, x)
    below = t.compute("MUL", [t.compute("MINIMUM", [x, zero]), slopes])
    t.write(value, "ADD", [t.compute("MAXIMUM", [x, zero]).index, below.index], order)


def _sloped(t: Translation, value: ir.Value, x: Placed, slopes: Placed, numbers: NDArray[Any]) -> bool:
    """LEAKY_RELU of one slope; in integers, of several up to 1, the larger of x and its product with them.

    XNNPACK has no PRELU of integers. Rounding does not change which of two numbers is larger.
    """
    if np.all(numbers == numbers.flat[0]):
        t.write(value, "LEAKY_RELU", [x.index], x.order, alpha=float(numbers.flat[0]))
        return True
    grid = t.grid_of(value)
    if grid is None or np.any(numbers > 1):
        return False
    product = t.compute("MUL", [x, slopes], grid=grid)
    t.write(value, "MAXIMUM", [t.requantized(x, grid).index, product.index], x.order)
    return True


def remainder(t: Translation, node: ir.Node) -> None:
    """FLOOR_MOD, whose sign is that of the divisor."""
    if node.attributes.get_int("fmod", 0):
        raise RefusedError("TensorFlow Lite has no remainder with the sign of what is divided")
    _pair("FLOOR_MOD")(t, node)


OPERATORS: dict[str, Any] = {
    **{op: _pair(kind) for op, kind in (_ARITHMETIC | _COMPARISONS).items()},
    **dict.fromkeys(_SEVERAL, several),
    "Mean": mean,
    "Mod": remainder,
    "PRelu": slope,
    "Pow": power,
    "Where": select,
}
