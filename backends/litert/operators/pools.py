"""Pools over one axis, two or three, and over all of a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.operators.convolutions import raised
from onnxq.backends.litert.operators.padding import padded, sides_padded
from onnxq.backends.litert.placed import Placed, RefusedError, last, reordered
from onnxq.backends.litert.translation import Translation
from onnxq.backends.litert.windows import Window, is_same, windows_of

__all__ = ["OPERATORS"]

_LINES, _PLANES, _VOLUMES = 3, 4, 5


def pool(t: Translation, node: ir.Node) -> None:
    """MAX_POOL_2D or AVERAGE_POOL_2D: of volumes one over planes, and one along what lies behind one another."""
    rank = len(t.shape(node.inputs[0]))
    if rank not in (_LINES, _PLANES, _VOLUMES):
        raise RefusedError(f"TensorFlow Lite has no pool over {rank - 2} axes")
    if len(node.outputs) > 1 and node.outputs[1].name:
        raise RefusedError("TensorFlow Lite has no MaxPool that gives indices")
    x, value = t.read(node.inputs[0], last(rank)), node.outputs[0]
    kernel, counts = node.attributes.get_ints("kernel_shape", ()), list(t.shape(value)[2:])
    windows = windows_of(node, x.shape[1:-1], kernel, counts)
    if any(window.gap != 1 for window in windows):
        raise RefusedError("TensorFlow Lite has no pool with dilations")
    ends = _said_ends(node, windows)
    parts = [_Part(*numbers) for numbers in zip(windows, counts, ends, strict=True)]
    largest, name = node.op_type == "MaxPool", value.name or ""
    if rank == _LINES:
        made = _pooled(t, raised(t, x), [_alone(1), *parts], name, largest=largest)
    elif rank == _PLANES:
        made = _pooled(t, x, parts, name, largest=largest)
    else:
        made = _of_volumes(t, x, parts, name, largest=largest)
    grid = t.grid_of(value)
    made = t.requantized(made, grid, name) if grid is not None else made  # pools keep the grid they read
    t.place(value, t.reshaped(made, reordered(t.shape(value), last(rank)), last(rank), name))


@dataclass(frozen=True, slots=True)
class _Part:
    """What a pool does along one axis.

    Attributes:
        window: with all padding.
        count: windows.
        end: the padding behind that a mean counts, which is in front, too; None where it counts none.
    """

    window: Window
    count: int
    end: int | None

    @property
    def elements(self) -> NDArray[np.int64]:
        """How many elements a mean has of each window."""
        starts = np.arange(self.count) * self.window.step - self.window.begin
        lowest = 0 if self.end is None else -self.window.begin
        highest = self.window.size + (self.end or 0)
        return np.minimum(starts + self.window.kernel, highest) - np.maximum(starts, lowest)


def _alone(size: int) -> _Part:
    """An axis whose elements stay by themselves."""
    return _Part(Window(size, 1, 1, 1, 0, 0), size, None)


def _of_volumes(t: Translation, x: Placed, parts: Sequence[_Part], name: str, *, largest: bool) -> Placed:
    batch, depth, *sizes, channels = x.shape
    planes = t.reshaped(x, (batch * depth, *sizes, channels), last(_PLANES))
    planes = _pooled(t, planes, parts[1:], name, largest=largest)
    count = math.prod(planes.shape[1:3])
    lines = t.reshaped(planes, (batch, depth, count, channels), last(_PLANES))
    return _pooled(t, lines, [parts[0], _alone(count)], name, largest=largest)


def _pooled(t: Translation, x: Placed, parts: Sequence[_Part], name: str, *, largest: bool) -> Placed:
    """A pool over a plane; means over parts of windows are multiplied by what makes them such."""
    windows = [part.window for part in parts]
    same = is_same(windows) and any(window.begin or window.end for window in windows)
    shares = None
    if not largest:
        counted = np.outer(*(part.elements for part in parts))
        inside = np.outer(*(_Part(part.window, part.count, None).elements for part in parts))
        same = same and np.array_equal(counted, inside)
        shares = None if same else math.prod(window.kernel for window in windows) / counted
    if not same:
        x = padded(t, x, sides_padded(windows), None if largest else 0.0)
    options = {
        "padding": "SAME" if same else "VALID",
        "strideH": windows[0].step,
        "strideW": windows[1].step,
        "filterHeight": windows[0].kernel,
        "filterWidth": windows[1].kernel,
    }
    shape = (x.shape[0], *(part.count for part in parts), x.shape[3])
    index = t.flat.tensor(name, shape, x.dtype, x.grid)
    t.flat.operator("MAX_POOL_2D" if largest else "AVERAGE_POOL_2D", [x.index], [index], **options)
    made = Placed(index, shape, x.order, x.dtype, x.grid)
    return made if shares is None or (shares == 1).all() else _shared(t, made, shares)


def _said_ends(node: ir.Node, windows: Sequence[Window]) -> Sequence[int | None]:
    """The padding behind that a mean counts along each axis; None where it counts none."""
    if not node.attributes.get_int("count_include_pad", 0):
        return [None] * len(windows)
    pads = node.attributes.get_ints("pads", ())
    if node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        return [window.end for window in windows]
    return list(pads[len(pads) // 2 :]) or [0] * len(windows)


def _shared(t: Translation, means: Placed, shares: NDArray[np.float64]) -> Placed:
    """Means over whole windows as means over parts of them."""
    if t.integer:
        raise RefusedError("its means leave out padding that TensorFlow Lite's do not")
    factors = t.constant("shares", shares.astype(np.float32)[None, :, :, None], order=means.order)
    return t.compute("MUL", [means, factors])


def over_all(t: Translation, node: ir.Node) -> None:
    """MEAN or REDUCE_MAX over all axes between batch and channels."""
    rank = len(t.shape(node.inputs[0]))
    mean = node.op_type == "GlobalAveragePool"
    x = t.read(node.inputs[0], last(rank)) if mean else t.read_on_grid(node, last(rank))
    kind = "MEAN" if mean else "REDUCE_MAX"
    inputs = [x.index, t.list_of(range(1, rank - 1))]
    t.write(node.outputs[0], kind, inputs, last(rank), keepDims=True)


OPERATORS = {"MaxPool": pool, "AveragePool": pool, "GlobalAveragePool": over_all, "GlobalMaxPool": over_all}
