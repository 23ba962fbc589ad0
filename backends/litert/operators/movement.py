"""Shapes, parts and orders: what moves elements, or picks some, and computes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.operators.elementwise import side_by_side
from onnxq.backends.litert.placed import Order, Placed, RefusedError, last, plain, same_bytes
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_PLANES = 4


def reshape(t: Translation, node: ir.Node) -> None:
    """RESHAPE of elements in ONNX's order."""
    value = node.outputs[0]
    x, shape = t.read(node.inputs[0]), t.shape(value)
    back = tuple(x.order.index(axis) for axis in plain(len(x.shape)))
    if not same_bytes(x.shape, back):
        x = t.read(node.inputs[0], plain(len(x.shape)))
    grid = t.grid_of(value)
    x = t.requantized(x, grid) if grid is not None else x
    t.place(value, t.reshaped(x, shape, name=value.name or ""))


def transpose(t: Translation, node: ir.Node) -> None:
    """Nothing but another order: whoever reads it asks for the one that it needs."""
    x, value = t.read(node.inputs[0]), node.outputs[0]
    rank = len(x.shape)
    permutation = node.attributes.get_ints("perm", ()) or tuple(reversed(range(rank)))
    order = tuple(permutation.index(axis) for axis in x.order)
    grid = t.grid_of(value)
    x = t.requantized(x, grid) if grid is not None else x
    t.place(value, Placed(x.index, x.shape, order, x.dtype, x.grid))


def concat(t: Translation, node: ir.Node) -> None:
    """CONCATENATION, of integers on one grid."""
    value = node.outputs[0]
    rank = len(t.shape(value))
    values = [one for one in node.inputs if 0 not in t.shape(one)]
    inputs, order = side_by_side(t, list(values), rank)
    grid = t.grid_of(value)
    inputs = [t.requantized(one, grid) for one in inputs] if grid is not None else inputs
    axis = order.index(node.attributes.get_int("axis", 0) % rank)
    t.write(value, "CONCATENATION", [one.index for one in inputs], order, axis=axis)


def split(t: Translation, node: ir.Node) -> None:
    """SPLIT_V."""
    x = t.read(node.inputs[0])
    axis = x.order.index(node.attributes.get_int("axis", 0) % len(x.shape))
    outputs = [value for value in node.outputs if value.name]
    sizes = [t.shape(value)[x.order[axis]] for value in outputs]
    made = [t.new(value, x.order) for value in outputs]
    if any(one.grid != x.grid for one in made):
        x = t.requantized(x, made[0].grid) if made[0].grid is not None else x
        if any(one.grid != x.grid for one in made):
            raise RefusedError("its results have grids of their own")
    axis_tensor = t.flat.constant("axis", np.array(axis, np.int32))
    options = {"numSplits": len(made)}
    t.flat.operator("SPLIT_V", [x.index, t.list_of(sizes), axis_tensor], [one.index for one in made], **options)
    for value, one in zip(outputs, made, strict=True):
        t.place(value, one)


def part(t: Translation, node: ir.Node) -> None:
    """STRIDED_SLICE between constant places."""
    given = [t.numbers(value) if value is not None else None for value in node.inputs[1:]]
    if any(one is None and value is not None for one, value in zip(given, node.inputs[1:], strict=True)):
        raise RefusedError("where it begins or ends is computed")
    x = t.read(node.inputs[0])
    rank, sizes = len(x.shape), t.shape(node.inputs[0])
    starts, ends = given[0], given[1]
    assert starts is not None and ends is not None
    axes = given[2] if len(given) > 2 and given[2] is not None else np.arange(starts.size)
    steps = given[3] if len(given) > 3 and given[3] is not None else np.ones(starts.size, np.int64)
    places = [(0, size, 1) for size in sizes]
    for axis, start, end, step in zip(*(one.reshape(-1).tolist() for one in (axes, starts, ends, steps)), strict=True):
        places[axis % rank] = slice(start, end, step).indices(sizes[axis % rank])
    stored = [places[axis] for axis in x.order]
    mask = sum(1 << k for k, (_, end, _) in enumerate(stored) if end < 0)  # backwards up to the first
    lists = [t.list_of([place[k] for place in stored]) for k in range(3)]
    _picked(t, node, "STRIDED_SLICE", x, lists, x.order, endMask=mask)


def _picked(
    t: Translation, node: ir.Node, kind: str, x: Placed, more: Sequence[int], order: Order, **options: Any
) -> None:
    """An operator that copies codes: on the grid of what it reads, then on that of its result."""
    value = node.outputs[0]
    grid = t.grid_of(value)
    x = t.requantized(x, grid) if grid is not None else x
    t.write(value, kind, [x.index, *more], order, **options)


def gather(t: Translation, node: ir.Node) -> None:
    """GATHER along an axis."""
    indices, shape = t.numbers(node.inputs[1]), t.shape(node.inputs[0])
    rank, value = len(shape), node.outputs[0]
    axis = node.attributes.get_int("axis", 0) % rank
    x = t.read(node.inputs[0], plain(rank))
    if indices is not None:
        wrapped = np.where(indices < 0, indices + shape[axis], indices).astype(np.int32)
        at = t.flat.constant("indices", wrapped)
    else:
        at = t.read(node.inputs[1], plain(len(t.shape(node.inputs[1])))).index
    _picked(t, node, "GATHER", x, [at], plain(len(t.shape(value))), axis=axis)


def gather_nd(t: Translation, node: ir.Node) -> None:
    """GATHER_ND without axes of batches."""
    if node.attributes.get_int("batch_dims", 0):
        raise RefusedError("TensorFlow Lite has no GatherND with batch_dims")
    x = t.read(node.inputs[0], plain(len(t.shape(node.inputs[0]))))
    indices = t.numbers(node.inputs[1])
    if indices is None:
        at = t.read(node.inputs[1], plain(len(t.shape(node.inputs[1])))).index
    else:
        sizes = np.array(t.shape(node.inputs[0])[: indices.shape[-1]])
        at = t.flat.constant("indices", np.where(indices < 0, indices + sizes, indices).astype(np.int32))
    _picked(t, node, "GATHER_ND", x, [at], plain(len(t.shape(node.outputs[0]))))


def expand(t: Translation, node: ir.Node) -> None:
    """BROADCAST_TO."""
    value = node.outputs[0]
    shape = t.shape(value)
    (x,), order = side_by_side(t, [node.inputs[0]], len(shape))
    stored = [shape[axis] for axis in order]
    _picked(t, node, "BROADCAST_TO", x, [t.list_of(stored)], order)


def tile(t: Translation, node: ir.Node) -> None:
    """TILE."""
    repeats = t.numbers(node.inputs[1])
    if repeats is None:
        raise RefusedError("how often it repeats is computed")
    x = t.read(node.inputs[0])
    _picked(t, node, "TILE", x, [t.list_of([int(repeats[axis]) for axis in x.order])], x.order)


def to_space(t: Translation, node: ir.Node) -> None:
    """DEPTH_TO_SPACE; channels are put into its order first where the mode is CRD."""
    block = node.attributes.get_int("blocksize", 1)
    x = t.read(node.inputs[0], last(_PLANES))
    if node.attributes.get_string("mode", "DCR") == "CRD":
        channels = x.shape[-1] // block**2
        indices = np.arange(x.shape[-1]).reshape(channels, block * block).T.reshape(-1).astype(np.int32)
        index = t.flat.tensor("reordered", x.shape, x.dtype, x.grid)
        t.flat.operator("GATHER", [x.index, t.flat.constant("order", indices)], [index], axis=3)
        x = Placed(index, x.shape, x.order, x.dtype, x.grid)
    _picked(t, node, "DEPTH_TO_SPACE", x, [], last(_PLANES), blockSize=block)


def to_depth(t: Translation, node: ir.Node) -> None:
    """SPACE_TO_DEPTH."""
    x = t.read(node.inputs[0], last(_PLANES))
    _picked(t, node, "SPACE_TO_DEPTH", x, [], last(_PLANES), blockSize=node.attributes.get_int("blocksize", 1))


OPERATORS: dict[str, Any] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), reshape),
    "Concat": concat,
    "DepthToSpace": to_space,
    "Expand": expand,
    "Gather": gather,
    "GatherND": gather_nd,
    "Slice": part,
    "SpaceToDepth": to_depth,
    "Split": split,
    "Tile": tile,
    "Transpose": transpose,
}
