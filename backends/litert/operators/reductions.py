"""Sums, means and extremes over axes, and where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.operators.hard import factor
from onnxq.backends.litert.placed import Grid, Order, Placed, RefusedError, without
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS", "mean_over"]

_ALIKE = {"ReduceMean": "MEAN", "ReduceSum": "SUM", "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN"}
_PRODUCT = {"ReduceProd": "REDUCE_PROD"}


def axes_of(t: Translation, node: ir.Node, rank: int) -> tuple[int, ...]:
    """The axes that a reduction takes away, as ONNX counts them."""
    axes: Sequence[int] = node.attributes.get_ints("axes", ())
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = t.numbers(node.inputs[1])
        if given is None:
            raise RefusedError("its axes are computed")
        axes = [int(axis) for axis in given.reshape(-1)]
    if not axes and not node.attributes.get_int("noop_with_empty_axes", 0):
        axes = range(rank)
    return tuple(sorted(axis % rank for axis in axes))


def reduce(t: Translation, node: ir.Node) -> None:
    """An operator of the same meaning."""
    kind = (_ALIKE | _PRODUCT)[node.op_type]
    x = t.read(node.inputs[0])
    _reduced(t, node, kind, x)


def _reduced(t: Translation, node: ir.Node, kind: str, x: Placed) -> None:
    rank = len(x.shape)
    x = t.read_on_grid(node) if kind in ("REDUCE_MAX", "REDUCE_MIN") else x
    axes, keeps = axes_of(t, node, rank), node.attributes.get_int("keepdims", 1) == 1
    if not axes:  # then it is the same tensor
        t.place(node.outputs[0], t.read_on_grid(node))
        return
    order = x.order if keeps else without(x.order, axes)
    stored = [x.order.index(axis) for axis in axes]
    grid = t.grid_of(node.outputs[0]) if kind == "SUM" else None
    if grid is not None:
        _summed(t, node, x, stored, order, grid, keeps=keeps)
        return
    t.write(node.outputs[0], kind, [x.index, t.list_of(sorted(stored))], order, keepDims=keeps)


def _summed(
    t: Translation, node: ir.Node, x: Placed, stored: Sequence[int], order: Order, grid: Grid, *, keeps: bool
) -> None:
    """A sum of integers as their mean times their number: LiteRT's own kernel of SUM, not XNNPACK's, is off."""
    count = math.prod(x.shape[axis] for axis in stored)
    fine = replace(grid, scale=(float(np.float32(grid.scale[0]) / np.float32(count)),))
    mean = t.new(node.outputs[0], order, grid=fine)
    t.flat.operator("MEAN", [x.index, t.list_of(sorted(stored))], [mean.index], keepDims=keeps)
    t.write(node.outputs[0], "MUL", [mean.index, factor(t, float(count), mean)], order)


def composed(t: Translation, node: ir.Node) -> None:
    """Norms and logarithms of sums, in float."""
    if t.integer:
        raise RefusedError("TensorFlow Lite has no such reduction of integers")
    x, value = t.read(node.inputs[0]), node.outputs[0]
    axes, keeps = axes_of(t, node, len(x.shape)), node.attributes.get_int("keepdims", 1) == 1
    order = x.order if keeps else without(x.order, axes)
    inner = {"ReduceL1": "ABS", "ReduceL2": "SQUARE", "ReduceSumSquare": "SQUARE"}.get(node.op_type)
    peak = None
    if node.op_type == "ReduceLogSumExp":
        peak = over(t, "REDUCE_MAX", x, axes)
        x = t.compute("EXP", [t.compute("SUB", [x, peak])])
    elif inner is not None:
        x = t.compute(inner, [x])
    total = over(t, "SUM", x, axes)
    outer = {"ReduceL2": "SQRT", "ReduceLogSum": "LOG", "ReduceLogSumExp": "LOG"}.get(node.op_type)
    made = total if outer is None else t.compute(outer, [total])
    made = made if peak is None else t.compute("ADD", [made, peak])
    t.flat.rename(made.index, value.name or "")
    shape = t.new_shape(value, order)
    t.place(value, t.reshaped(made, shape, order, value.name or ""))


def over(t: Translation, kind: str, x: Placed, axes: Sequence[int]) -> Placed:
    """A reduction on the way, which keeps its axes; ``axes`` as ONNX counts them."""
    stored = sorted(x.order.index(axis) for axis in axes)
    shape = [1 if k in stored else size for k, size in enumerate(x.shape)]
    index = t.flat.tensor(kind.lower(), shape, x.dtype)
    t.flat.operator(kind, [x.index, t.list_of(stored)], [index], keepDims=True)
    return Placed(index, tuple(shape), x.order, x.dtype)


def mean_over(t: Translation, x: Placed, axes: Sequence[int]) -> Placed:
    """The mean over axes, which stay."""
    return over(t, "MEAN", x, axes)


def position(t: Translation, node: ir.Node) -> None:
    """ARG_MAX or ARG_MIN, of int8 as well as of floats: their order is the same."""
    if node.attributes.get_int("select_last_index", 0):
        raise RefusedError("TensorFlow Lite takes the first of equal elements")
    x, value = t.read_codes(node.inputs[0]), node.outputs[0]
    x = t.read(node.inputs[0]) if x.dtype is ir.DataType.INT16 else x
    axis = node.attributes.get_int("axis", 0) % len(x.shape)
    stored, keeps = x.order.index(axis), node.attributes.get_int("keepdims", 1) == 1
    order = without(x.order, [axis])
    shape = tuple(size for k, size in enumerate(x.shape) if k != stored)
    index = t.flat.tensor(value.name or "", shape, ir.DataType.INT64)
    options = {"outputType": "INT64"}
    kind = "ARG_MAX" if node.op_type == "ArgMax" else "ARG_MIN"
    t.flat.operator(kind, [x.index, t.list_of([stored])], [index], **options)
    made = Placed(index, shape, order, ir.DataType.INT64)
    t.place(value, t.reshaped(made, t.new_shape(value, x.order), x.order) if keeps else made)


def total(t: Translation, node: ir.Node) -> None:
    """CUMSUM."""
    axis = t.numbers(node.inputs[1])
    if axis is None:
        raise RefusedError("its axis is computed")
    x = t.read(node.inputs[0])
    stored = x.order.index(int(axis.reshape(-1)[0]) % len(x.shape))
    get = node.attributes
    options = {"exclusive": get.get_int("exclusive", 0) == 1, "reverse": get.get_int("reverse", 0) == 1}
    t.write(node.outputs[0], "CUMSUM", [x.index, t.list_of([stored])], x.order, **options)


def largest(t: Translation, node: ir.Node) -> None:
    """TOPK_V2 over the last axis that is stored; the smallest are the largest of the negative."""
    count, get = t.numbers(node.inputs[1]), node.attributes
    rank = len(t.shape(node.inputs[0]))
    if count is None:
        raise RefusedError("its number of elements is computed")
    axis, smallest = get.get_int("axis", -1) % rank, not get.get_int("largest", 1)
    order = (*(one for one in range(rank) if one != axis), axis)
    x, (values, indices) = t.read(node.inputs[0], order), node.outputs
    x = t.compute("NEG", [x]) if smallest else x
    shape = (*x.shape[:-1], int(count.reshape(-1)[0]))
    picked, at = t.flat.tensor("largest", shape, x.dtype), t.flat.tensor("positions", shape, ir.DataType.INT32)
    t.flat.operator("TOPK_V2", [x.index, t.flat.constant("k", np.array(shape[-1], np.int32))], [picked, at])
    made = Placed(picked, shape, order, x.dtype)
    t.place(values, t.compute("NEG", [made]) if smallest else made)
    t.place(indices, t.cast(Placed(at, shape, order, ir.DataType.INT32), ir.DataType.INT64))


OPERATORS: dict[str, Any] = {
    **dict.fromkeys(_ALIKE | _PRODUCT, reduce),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), composed),
    "ArgMax": position,
    "ArgMin": position,
    "CumSum": total,
    "TopK": largest,
}
