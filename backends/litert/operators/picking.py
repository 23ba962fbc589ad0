"""Elements at given places: what picks some of a tensor, and what puts others into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.placed import Grid, Order, Placed, RefusedError, plain
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS", "along", "picked"]


def picked(
    t: Translation, node: ir.Node, kind: str, x: Placed, more: Sequence[int], order: Order, **options: Any
) -> None:
    """An operator that copies codes: on the grid of what it reads, then on that of its result."""
    value = node.outputs[0]
    grid = t.grid_of(value)
    x = t.requantized(x, grid) if grid is not None else x
    t.write(value, kind, [x.index, *more], order, **options)


def along(t: Translation, x: Placed, stored: int, positions: NDArray[Any]) -> Placed:
    """Elements at constant positions along an axis, as it is stored; the tensor itself where these are all of it."""
    if np.array_equal(positions, np.arange(x.shape[stored])):
        return x
    shape = (*x.shape[:stored], positions.size, *x.shape[stored + 1 :])
    index = t.flat.tensor("picked", shape, x.dtype, x.grid)
    at = t.flat.constant("positions", positions.astype(np.int32))
    t.flat.operator("GATHER", [x.index, at], [index], axis=stored)
    return Placed(index, shape, x.order, x.dtype, x.grid)


def gather(t: Translation, node: ir.Node) -> None:
    """GATHER along an axis."""
    shape, value = t.shape(node.inputs[0]), node.outputs[0]
    rank = len(shape)
    axis = node.attributes.get_int("axis", 0) % rank
    found = t.stored(node.inputs[0])
    if found is not None and found[1] is not None and not t.integer and rank == 2 and axis == found[1].axis == 0:
        _looked_up(t, node, *found)
        return
    x = t.read(node.inputs[0], plain(rank))
    at = _places(t, node.inputs[1], shape[axis])
    picked(t, node, "GATHER", x, [at], plain(len(t.shape(value))), axis=axis)


def _looked_up(t: Translation, node: ir.Node, table: NDArray[Any], grid: Grid | None) -> None:
    """EMBEDDING_LOOKUP, which unpacks the rows that it picks from a table of integers with a scale for each."""
    value, source = node.outputs[0], node.inputs[0]
    shape = t.shape(value)
    count = math.prod(shape[:-1])
    rows = t.constant(source.name or "" if source is not None else "", table, grid)
    made = t.new(value, plain(2), (count, shape[-1]))
    t.flat.operator(
        "EMBEDDING_LOOKUP", [_list_of_rows(t, node.inputs[1], table.shape[0], count), rows.index], [made.index]
    )
    t.place(value, t.reshaped(made, shape, name=value.name or ""))


def _list_of_rows(t: Translation, value: ir.Value | None, size: int, count: int) -> int:
    """Numbers of rows as a list of int32."""
    given = t.numbers(value)
    if given is not None:
        return t.flat.constant("rows", np.where(given < 0, given + size, given).astype(np.int32).reshape(-1))
    at = t.reshaped(t.read(value, plain(len(t.shape(value)))), (count,))
    return at.index if at.dtype is ir.DataType.INT32 else t.cast(at, ir.DataType.INT32).index


def _places(t: Translation, value: ir.Value | None, sizes: int | NDArray[Any]) -> int:
    """Indices; constant ones below 0 count from the end, computed ones LiteRT refuses when it meets them."""
    indices = t.numbers(value)
    if indices is None:
        return t.read(value, plain(len(t.shape(value)))).index
    return t.flat.constant("indices", np.where(indices < 0, indices + sizes, indices).astype(np.int32))


def gather_nd(t: Translation, node: ir.Node) -> None:
    """GATHER_ND without axes of batches."""
    if node.attributes.get_int("batch_dims", 0):
        raise RefusedError("TensorFlow Lite has no GatherND with batch_dims")
    sizes = t.shape(node.inputs[0])
    x = t.read(node.inputs[0], plain(len(sizes)))
    at = _places(t, node.inputs[1], np.array(sizes[: t.shape(node.inputs[1])[-1]]))
    picked(t, node, "GATHER_ND", x, [at], plain(len(t.shape(node.outputs[0]))))


def gather_elements(t: Translation, node: ir.Node) -> None:
    """GATHER along the last axis, the others its batch."""
    sizes, wanted = t.shape(node.inputs[0]), t.shape(node.inputs[1])
    rank = len(sizes)
    axis = node.attributes.get_int("axis", 0) % rank
    if any(one != other for k, (one, other) in enumerate(zip(sizes, wanted, strict=True)) if k != axis):
        raise RefusedError("its indices are fewer than its elements along other axes than its own")
    order = (*(one for one in range(rank) if one != axis), axis)
    x, indices = t.read(node.inputs[0], order), t.numbers(node.inputs[1])
    if indices is None:
        at = t.read(node.inputs[1], order).index
    else:
        at = t.flat.constant("indices", (indices % sizes[axis]).transpose(order).astype(np.int32))
    picked(t, node, "GATHER", x, [at], order, axis=rank - 1, batchDims=rank - 1)


def scatter_nd(t: Translation, node: ir.Node) -> None:
    """Others at constant places: SCATTER_ND of these, and what was there elsewhere."""
    indices = t.numbers(node.inputs[1])
    if indices is None:
        raise RefusedError("where it puts elements is computed")
    sizes = t.shape(node.inputs[0])
    _put(t, node, indices.reshape(-1, indices.shape[-1]) % np.array(sizes[: indices.shape[-1]]))


def scatter_elements(t: Translation, node: ir.Node) -> None:
    """The same, with a place for each element."""
    indices = t.numbers(node.inputs[1])
    if indices is None:
        raise RefusedError("where it puts elements is computed")
    sizes = t.shape(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % len(sizes)
    places: NDArray[Any] = np.moveaxis(np.indices(indices.shape), 0, -1)
    places[..., axis] = indices % sizes[axis]
    _put(t, node, places.reshape(-1, len(sizes)))


def _put(t: Translation, node: ir.Node, places: NDArray[Any]) -> None:
    """Elements, or slices, at places that are told apart by a mask."""
    if node.attributes.get_string("reduction", "none") != "none":
        raise RefusedError("TensorFlow Lite has no scattering onto what is there")
    if len(np.unique(places, axis=0)) != len(places):
        raise RefusedError("it puts several elements at one place")
    if t.integer:
        raise RefusedError("TensorFlow Lite's scattering is not used in integers")
    sizes, value = t.shape(node.inputs[0]), node.outputs[0]
    x = t.read(node.inputs[0], plain(len(sizes)))
    others = t.read(node.inputs[2], plain(len(t.shape(node.inputs[2]))))
    others = t.reshaped(others, (len(places), *sizes[places.shape[-1] :]))
    full = t.flat.tensor("scattered", sizes, x.dtype)
    at = t.flat.constant("places", places.astype(np.int32))
    t.flat.operator("SCATTER_ND", [at, others.index, t.list_of(sizes)], [full])
    mask = np.zeros(sizes, bool)
    mask[tuple(places.T)] = True
    t.write(value, "SELECT_V2", [t.flat.constant("mask", mask), full, x.index], plain(len(sizes)))


def one_hot(t: Translation, node: ir.Node) -> None:
    """ONE_HOT of as many classes as a constant says; indices below 0 count from the end."""
    depth, values = t.numbers(node.inputs[1]), t.numbers(node.inputs[2])
    if depth is None or values is None:
        raise RefusedError("how many classes it has, or what it says of them, is computed")
    value, count = node.outputs[0], int(depth.reshape(-1)[0])
    rank = len(t.shape(value))
    indices = t.read(node.inputs[0], plain(rank - 1))
    if indices.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        indices = t.cast(indices, ir.DataType.INT64)
    numbers = [np.array(one, indices.dtype.numpy()).reshape((1,) * (rank - 1)) for one in (0, count)]
    zero, size = (t.constant("number", number) for number in numbers)
    below = t.compared("LESS", indices, zero)
    wrapped = t.flat.tensor("wrapped", indices.shape, indices.dtype)
    t.flat.operator("SELECT_V2", [below.index, t.compute("ADD", [indices, size]).index, indices.index], [wrapped])
    off, on = (t.flat.constant("value", np.array(number, values.dtype)) for number in values.reshape(-1))
    inputs = [wrapped, t.flat.constant("depth", np.array(count, np.int32)), on, off]
    axis = node.attributes.get_int("axis", -1) % rank
    t.write(value, "ONE_HOT", inputs, plain(rank), axis=-1 if axis == rank - 1 else axis)


OPERATORS: dict[str, Any] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
}
