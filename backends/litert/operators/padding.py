"""Padding: PAD of zeros, PADV2 of other numbers, MIRROR_PAD of reflections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.placed import Placed, RefusedError, reordered
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
    if (pads < 0).any():
        raise RefusedError("its padding is negative")
    sides = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        sides[int(axis) % rank] = (int(pads[k]), int(pads[k + len(axes)]))
    stored = [sides[axis] for axis in x.order]
    if mode == "constant":
        given = t.numbers(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(1)
        if given is None:
            raise RefusedError("what it fills in is computed")
        made = padded(t, x, stored, float(given.reshape(-1)[0]))
        t.place(node.outputs[0], _renamed(t, node, made))
        return
    if mode != "reflect":
        raise RefusedError(f"TensorFlow Lite has no padding of mode {mode}")
    shape = reordered(t.shape(node.outputs[0]), x.order)
    index = t.flat.tensor(node.outputs[0].name or "", shape, x.dtype, x.grid)
    paddings = t.flat.constant("paddings", np.array(stored, np.int32))
    t.flat.operator("MIRROR_PAD", [x.index, paddings], [index], mode="REFLECT")
    t.place(node.outputs[0], Placed(index, shape, x.order, x.dtype, x.grid))


def _renamed(t: Translation, node: ir.Node, made: Placed) -> Placed:
    if t.flat.is_computed(made.index):
        t.flat.rename(made.index, node.outputs[0].name or "")
    return made


OPERATORS = {"Pad": pad}
