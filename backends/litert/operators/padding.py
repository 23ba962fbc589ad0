"""Padding: PAD of zeros, PADV2 of other numbers, MIRROR_PAD of reflections, GATHER of all else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.operators.picking import along
from onnxq.backends.litert.placed import Placed, RefusedError
from onnxq.backends.litert.translation import Translation
from onnxq.backends.litert.windows import Window

__all__ = ["OPERATORS", "padded", "sides_padded"]

Sides = Sequence[tuple[int, int]]
"""Elements in front and behind, for each axis as it is stored."""


def sides_padded(windows: Sequence[Window]) -> Sides:
    """The padding of windows, for batch and channels too."""
    return [(0, 0), *((w.begin, w.end) for w in windows), (0, 0)]


def padded(t: Translation, x: Placed, sides: Sides, number: float | None = 0.0) -> Placed:
    """A tensor with a number around it; None is the lowest that its type has."""
    if not any(any(side) for side in sides):
        return x
    shape = [size + sum(side) for size, side in zip(x.shape, sides, strict=True)]
    index = t.flat.tensor("padded", shape, x.dtype, x.grid)
    paddings = t.flat.constant("paddings", np.array(sides, np.int32))
    if number == 0.0:
        t.flat.operator("PAD", [x.index, paddings], [index])
    else:
        t.flat.operator("PADV2", [x.index, paddings, _filling(t, x, number)], [index])
    return Placed(index, tuple(shape), x.order, x.dtype, x.grid)


def _filling(t: Translation, x: Placed, number: float | None) -> int:
    kind = x.dtype.numpy()
    if number is None:
        lowest = np.iinfo(kind).min if x.grid is not None or np.issubdtype(kind, np.integer) else np.finfo(kind).min
        return t.flat.constant("lowest", np.array(lowest, kind), x.grid)
    code = t.code(number, x.grid) if x.grid is not None else number
    return t.flat.constant("filling", np.array(code, kind), x.grid)


def pad(t: Translation, node: ir.Node) -> None:
    """A Pad with constant sizes."""
    mode = node.attributes.get_string("mode", "constant")
    pads = t.numbers(node.inputs[1]) if len(node.inputs) > 1 else None
    if pads is None:
        raise RefusedError("its padding is computed")
    rank = len(t.shape(node.inputs[0]))
    x = t.read(node.inputs[0])
    axes = t.numbers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else np.arange(rank)
    if axes is None:
        raise RefusedError("its axes are computed")
    sides = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        sides[int(axis) % rank] = (int(pads[k]), int(pads[k + len(axes)]))
    x, stored = _without_negative(t, x, [sides[axis] for axis in x.order])
    if mode == "constant":
        made = padded(t, x, stored, _number(t, node))
    elif mode == "reflect":
        made = _reflected(t, x, stored)
    else:
        made = _from_inside(t, x, stored, mode)
    t.place(node.outputs[0], _renamed(t, node, made))


def _number(t: Translation, node: ir.Node) -> float:
    """What a Pad fills in."""
    given = t.numbers(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(1)
    if given is None:
        raise RefusedError("what it fills in is computed")
    return float(given.reshape(-1)[0])


def _without_negative(t: Translation, x: Placed, sides: Sides) -> tuple[Placed, Sides]:
    """What is left of a tensor where its padding is negative, and the padding that is not."""
    for axis, (begin, end) in enumerate(sides):
        x = along(t, x, axis, np.arange(max(-begin, 0), x.shape[axis] - max(-end, 0)))
    return x, [(max(begin, 0), max(end, 0)) for begin, end in sides]


def _reflected(t: Translation, x: Placed, sides: Sides) -> Placed:
    if any(max(side) >= size for size, side in zip(x.shape, sides, strict=True)):
        raise RefusedError("it reflects more elements than there are")
    shape = tuple(size + sum(side) for size, side in zip(x.shape, sides, strict=True))
    index = t.flat.tensor("reflected", shape, x.dtype, x.grid)
    t.flat.operator(
        "MIRROR_PAD", [x.index, t.flat.constant("paddings", np.array(sides, np.int32))], [index], mode="REFLECT"
    )
    return Placed(index, shape, x.order, x.dtype, x.grid)


def _from_inside(t: Translation, x: Placed, sides: Sides, mode: str) -> Placed:
    """The nearest element (``edge``), or those from the other side (``wrap``), which TensorFlow Lite picks."""
    for axis, (begin, end) in enumerate(sides):
        size = x.shape[axis]
        positions = np.arange(-begin, size + end)
        x = along(t, x, axis, positions.clip(0, size - 1) if mode == "edge" else positions % size)
    return x


def _renamed(t: Translation, node: ir.Node, made: Placed) -> Placed:
    if t.flat.is_computed(made.index):
        t.flat.rename(made.index, node.outputs[0].name or "")
    return made


OPERATORS = {"Pad": pad}
