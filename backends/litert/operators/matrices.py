"""Products: with constant matrices FULLY_CONNECTED, of two tensors BATCH_MATMUL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.operators.convolutions import bias
from onnxq.backends.litert.placed import Grid, Placed, RefusedError, plain
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]


def gemm(t: Translation, node: ir.Node) -> None:
    """A Gemm, its weights a constant (N, K)."""
    get = node.attributes
    if get.get_float("alpha", 1.0) != 1.0 or get.get_float("beta", 1.0) != 1.0:
        raise RefusedError("its alpha or beta is not 1, and not folded into a constant")
    if t.stored(node.inputs[1]) is None:
        _computed_gemm(t, node)
        return
    x = t.read(node.inputs[0], (1, 0) if get.get_int("transA", 0) else (0, 1))
    x = Placed(x.index, x.shape, (0, 1), x.dtype, x.grid)
    weight, grid = t.weight(node)
    value, added = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    channels = weight.shape[0 if get.get_int("transB", 0) else 1]
    is_vector = added is None or (t.shape(added) in ((channels,), (1, channels)) and t.stored(added) is not None)
    kernel = weight if get.get_int("transB", 0) else weight.T
    name = node.inputs[1].name if node.inputs[1] is not None else ""
    stored = t.constant(name or "", kernel, Grid(grid.scale, grid.zero_point, 0) if grid is not None else None)
    if is_vector:
        rows = t.as_rows(x)
        shape = (*rows.shape[:-1], channels)
        made = t.new(value, plain(len(shape)), shape)
        inputs = [rows.index, stored.index, bias(t, node, x, grid, channels)]
        t.flat.operator("FULLY_CONNECTED", inputs, [made.index], keepNumDims=len(shape) != 2)
        t.place(value, t.reshaped(made, t.shape(value)))
        return
    if t.integer:
        raise RefusedError("what it adds is no vector")
    product = t.compute("FULLY_CONNECTED", [x, stored], -1, shape=t.shape(value))
    t.write(value, "ADD", [product.index, _rows(t, added).index], (0, 1))


def _rows(t: Translation, added: ir.Value | None) -> Placed:
    """What a Gemm adds, with two axes."""
    shape = t.shape(added)
    if t.stored(added) is not None:
        return t.operand(added, (0, 1), 2)
    placed = t.read(added, plain(len(shape)))
    return t.reshaped(placed, (1,) * (2 - len(shape)) + shape)


def _computed_gemm(t: Translation, node: ir.Node) -> None:
    """A Gemm of two computed matrices."""
    get = node.attributes
    x = t.read(node.inputs[0], (1, 0) if get.get_int("transA", 0) else (0, 1))
    y = t.read(node.inputs[1], (1, 0) if get.get_int("transB", 0) else (0, 1))
    value, added = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if added is None:
        t.write(value, "BATCH_MATMUL", [x.index, y.index], (0, 1))
        return
    if t.integer:
        raise RefusedError("its weights are computed")
    product = t.compute("BATCH_MATMUL", [x, y], shape=t.shape(value))
    t.write(value, "ADD", [product.index, _rows(t, added).index], (0, 1))


def matmul(t: Translation, node: ir.Node) -> None:
    """A product of matrices, of tokens with a constant matrix, or of batches; a vector is a matrix of one row."""
    left, right = (len(t.shape(value)) for value in node.inputs)
    if right == 2 and t.stored(node.inputs[1]) is not None:
        _by_constant(t, node, left)
        return
    (x, turned_x), (y, turned_y) = (_matrices(t, value) for value in node.inputs)
    if any(one.grid is not None and len(one.grid.scale) > 1 for one in (x, y)):
        raise RefusedError("TensorFlow Lite multiplies batches of one scale")
    wide = ir.DataType.INT16 if ir.DataType.INT16 in (x.dtype, y.dtype) else ir.DataType.INT8
    x, y = (_stored_as(t, one, wide) for one in (x, y))
    x = t.reshaped(x, (1, *x.shape)) if left == 1 else x
    y = t.reshaped(y, (*y.shape, 1)) if right == 1 else y
    rank = max(len(x.shape), len(y.shape))
    inputs = [t.reshaped(one, (1,) * (rank - len(one.shape)) + one.shape) for one in (x, y)]
    value = node.outputs[0]
    rows, columns = x.shape[-1 if turned_x else -2], y.shape[-2 if turned_y else -1]
    batch = np.broadcast_shapes(*(one.shape[:-2] for one in inputs))
    made = t.new(value, plain(rank), (*batch, rows, columns))
    t.flat.operator("BATCH_MATMUL", [one.index for one in inputs], [made.index], adjX=turned_x, adjY=turned_y)
    t.place(value, t.reshaped(made, t.shape(value), name=value.name or ""))


def _stored_as(t: Translation, placed: Placed, dtype: ir.DataType) -> Placed:
    """Weights in integers of a type, the same numbers: BATCH_MATMUL wants one type, and has no int4."""
    codes = t.flat.numbers(placed.index)
    if codes is None or placed.grid is None or placed.dtype is dtype:
        return placed
    return t.constant("weights", codes.astype(dtype.numpy()), replace(placed.grid, dtype=dtype), placed.order)


def _matrices(t: Translation, value: ir.Value | None) -> tuple[Placed, bool]:
    """Matrices with rows and columns as they are stored, and whether these have changed places."""
    rank = len(t.shape(value))
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    if t.stored(value) is None and t.read(value).order == swapped and rank > 2:
        return t.read(value, swapped), True
    return t.read(value, plain(rank)), False


def _by_constant(t: Translation, node: ir.Node, rank: int) -> None:
    weight, grid = t.weight(node)
    x = t.read(node.inputs[0])
    if rank == 1:
        x = t.reshaped(x, (1, *x.shape))
    elif x.order[-1] != rank - 1:
        x = t.read(node.inputs[0], plain(rank))
    name = node.inputs[1].name if node.inputs[1] is not None else ""
    kept = Grid(grid.scale, grid.zero_point, 0) if grid is not None else None
    kernel = t.constant(name or "", weight.T, kept)
    inputs = [x.index, kernel.index, bias(t, node, x, grid, weight.shape[1])]
    if rank > 1:
        t.write(node.outputs[0], "FULLY_CONNECTED", inputs, x.order, keepNumDims=True)
        return
    made = t.new(node.outputs[0], x.order, (1, weight.shape[1]))
    t.flat.operator("FULLY_CONNECTED", inputs, [made.index])
    t.place(node.outputs[0], t.reshaped(made, made.shape[1:], name=node.outputs[0].name or ""))


OPERATORS: dict[str, Any] = {"Gemm": gemm, "MatMul": matmul}
