"""Shapes, parts and orders: what moves elements, or picks some, and computes none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.operators.elementwise import side_by_side
from onnxq.backends.litert.operators.picking import along, picked
from onnxq.backends.litert.placed import Placed, RefusedError, last, plain, same_bytes, without
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


def axes_of_one(t: Translation, node: ir.Node) -> None:
    """A Squeeze or Unsqueeze, a RESHAPE whatever the order of the axes."""
    value = node.outputs[0]
    x = t.read_on_grid(node)
    before, after = len(x.shape), len(t.shape(value))
    axes = _axes(t, node, x, max(before, after))
    if after < before:
        order = without(x.order, axes)
    else:
        left = [axis for axis in range(after) if axis not in axes]
        moved = [left[axis] for axis in x.order]
        for axis in axes:
            moved.insert(axis, axis)
        order = tuple(moved)
    t.place(value, t.reshaped(x, t.new_shape(value, order), order, value.name or ""))


def _axes(t: Translation, node: ir.Node, x: Placed, rank: int) -> list[int]:
    """The axes that are taken away or added, in order."""
    given = t.numbers(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if given is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        raise RefusedError("its axes are computed")
    axes = node.attributes.get_ints("axes", ()) if given is None else [int(axis) for axis in given.reshape(-1)]
    if not axes and node.op_type == "Squeeze":
        axes = [axis for axis, size in enumerate(x.given) if size == 1]
    return sorted(axis % rank for axis in axes)


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
    if not values:
        raise RefusedError("nothing that it joins has elements")
    inputs, order = side_by_side(t, list(values), rank)
    grid = t.grid_of(value)
    inputs = [t.requantized(one, grid) for one in inputs] if grid is not None else inputs
    axis = order.index(node.attributes.get_int("axis", 0) % rank)
    t.write(value, "CONCATENATION", [one.index for one in inputs], order, axis=axis)


def split(t: Translation, node: ir.Node) -> None:
    """SPLIT_V; integers stay on the grid that they are on."""
    x = t.read(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % len(x.shape)
    stored = x.order.index(axis)
    sizes = _sizes_of_parts(t, node, x.shape[stored])
    shapes = [(*x.shape[:stored], size, *x.shape[stored + 1 :]) for size in sizes]
    made = [
        Placed(t.flat.tensor(value.name or "unused", shape, x.dtype, x.grid), shape, x.order, x.dtype, x.grid)
        for value, shape in zip(node.outputs, shapes, strict=True)
    ]
    inputs = [x.index, t.list_of(sizes), t.flat.constant("axis", np.array(stored, np.int32))]
    t.flat.operator("SPLIT_V", inputs, [one.index for one in made], numSplits=len(made))
    for value, one in zip(node.outputs, made, strict=True):
        t.place(value, one)


def _sizes_of_parts(t: Translation, node: ir.Node, size: int) -> list[int]:
    """As they are given, or even ones, the last of which may be smaller."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = t.numbers(node.inputs[1])
        if given is None:
            raise RefusedError("the sizes of its parts are computed")
        return [int(one) for one in given]
    count = len(node.outputs)
    part = -(-size // count)
    return [part] * (count - 1) + [size - part * (count - 1)]


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
    picked(t, node, "STRIDED_SLICE", x, lists, x.order, endMask=mask)


def expand(t: Translation, node: ir.Node) -> None:
    """BROADCAST_TO."""
    value = node.outputs[0]
    shape = t.shape(value)
    (x,), order = side_by_side(t, [node.inputs[0]], len(shape))
    stored = [shape[axis] for axis in order]
    picked(t, node, "BROADCAST_TO", x, [t.list_of(stored)], order)


def tile(t: Translation, node: ir.Node) -> None:
    """TILE."""
    repeats = t.numbers(node.inputs[1])
    if repeats is None:
        raise RefusedError("how often it repeats is computed")
    x = t.read(node.inputs[0])
    picked(t, node, "TILE", x, [t.list_of([int(repeats[axis]) for axis in x.order])], x.order)


def to_space(t: Translation, node: ir.Node) -> None:
    """DEPTH_TO_SPACE; channels are put into its order first where the mode is CRD.

    Of int16, which has none, a TRANSPOSE between two RESHAPE.
    """
    block = node.attributes.get_int("blocksize", 1)
    x = t.read(node.inputs[0], last(_PLANES))
    if node.attributes.get_string("mode", "DCR") == "CRD":
        channels = x.shape[-1] // block**2
        x = along(t, x, 3, np.arange(x.shape[-1]).reshape(channels, block * block).T.reshape(-1))
    if x.dtype is ir.DataType.INT16:
        batch, height, width, channels = x.shape
        _swapped(t, node, x, (batch * height, width, block, channels // block))
    else:
        picked(t, node, "DEPTH_TO_SPACE", x, [], last(_PLANES), blockSize=block)


def _swapped(t: Translation, node: ir.Node, x: Placed, shape: tuple[int, ...]) -> None:
    """The elements of a plane with other axes, the middle ones swapped, as a plane again, on the grid of the result."""
    value = node.outputs[0]
    grid = t.grid_of(value)
    x = t.requantized(x, grid) if grid is not None else x
    moved = t.turned(t.reshaped(x, shape), (0, 2, 1, 3))
    t.place(value, t.reshaped(moved, t.new_shape(value, last(_PLANES)), last(_PLANES), value.name or ""))


def to_depth(t: Translation, node: ir.Node) -> None:
    """SPACE_TO_DEPTH; of int16, which has none, a TRANSPOSE between two RESHAPE."""
    block = node.attributes.get_int("blocksize", 1)
    x = t.read(node.inputs[0], last(_PLANES))
    if x.dtype is ir.DataType.INT16:
        batch, height, width, channels = x.shape
        _swapped(t, node, x, (batch * height // block, block, width // block, block * channels))
    else:
        picked(t, node, "SPACE_TO_DEPTH", x, [], last(_PLANES), blockSize=block)


OPERATORS: dict[str, Any] = {
    **dict.fromkeys(("Flatten", "Reshape"), reshape),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), axes_of_one),
    "Concat": concat,
    "DepthToSpace": to_space,
    "Expand": expand,
    "Slice": part,
    "SpaceToDepth": to_depth,
    "Split": split,
    "Tile": tile,
    "Transpose": transpose,
}
