"""Pools over one axis or two, and over all of a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.operators.convolutions import raised
from onnxq.backends.litert.operators.padding import padded, sides_padded
from onnxq.backends.litert.placed import Placed, RefusedError, last, reordered
from onnxq.backends.litert.translation import Translation
from onnxq.backends.litert.windows import Window, is_same, windows_of

__all__ = ["OPERATORS"]

_LINES, _PLANES = 3, 4


def pool(t: Translation, node: ir.Node) -> None:
    """MAX_POOL_2D or AVERAGE_POOL_2D; means over parts of windows are multiplied by what makes them such."""
    rank = len(t.shape(node.inputs[0]))
    largest = node.op_type == "MaxPool"
    if rank not in (_LINES, _PLANES):
        raise RefusedError(f"TensorFlow Lite has no pool over {rank - 2} axes")
    if len(node.outputs) > 1 and node.outputs[1].name:
        raise RefusedError("TensorFlow Lite has no MaxPool that gives indices")
    x = t.read(node.inputs[0], last(rank))
    kernel, value = node.attributes.get_ints("kernel_shape", ()), node.outputs[0]
    windows = windows_of(node, x.shape[1:-1], kernel, t.shape(value)[2:])
    if any(window.gap != 1 for window in windows):
        raise RefusedError("TensorFlow Lite has no pool with dilations")
    if rank == _LINES:
        x, windows = raised(t, x), [Window(1, 1, 1, 1, 0, 0), *windows]
    batch, channels, *sizes = t.shape(value)
    counts = sizes if rank == _PLANES else [1, *sizes]
    same = is_same(windows) and any(window.begin or window.end for window in windows)
    shares = None
    if not largest:
        counted = _elements(windows, counts, _said_ends(node, windows))
        same = same and np.array_equal(counted, _elements(windows, counts, None))
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
    grid = t.grid_of(value)
    made = t.new(value, last(_PLANES), (batch, *counts, channels), grid=x.grid if grid is not None else None)
    t.flat.operator("MAX_POOL_2D" if largest else "AVERAGE_POOL_2D", [x.index], [made.index], **options)
    if shares is not None and not (shares == 1).all():
        made = _shared(t, made, shares)
    made = t.requantized(made, grid, value.name or "") if grid is not None else made  # pools keep the grid they read
    shape = reordered(t.shape(value), last(rank))
    t.place(value, t.reshaped(made, shape, last(rank), value.name or ""))


def _said_ends(node: ir.Node, windows: Sequence[Window]) -> list[int] | None:
    """The padding behind that a mean counts, which is in front, too; None where it counts none."""
    if not node.attributes.get_int("count_include_pad", 0):
        return None
    pads = node.attributes.get_ints("pads", ())
    if node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        return [window.end for window in windows]
    behind = list(pads[len(pads) // 2 :])
    return [0] * (len(windows) - len(behind)) + behind


def _elements(windows: Sequence[Window], counts: Sequence[int], ends: Sequence[int] | None) -> NDArray[np.float64]:
    """How many elements each window has a mean over."""
    along = []
    for k, (window, count) in enumerate(zip(windows, counts, strict=True)):
        starts = np.arange(count) * window.step - window.begin
        lowest, highest = (0, window.size) if ends is None else (-window.begin, window.size + ends[k])
        along.append(np.minimum(starts + window.kernel, highest) - np.maximum(starts, lowest))
    return np.outer(*along).astype(np.float64)


def _shared(t: Translation, means: Placed, shares: NDArray[np.float64]) -> Placed:
    """Means over whole windows as means over parts of them."""
    if t.integer:
        raise RefusedError("its means leave out padding that TensorFlow Lite's do not")
    factors = t.constant("shares", shares.astype(np.float32)[None, :, :, None], order=means.order)
    return t.compute("MUL", [means, factors])


def over_all(t: Translation, node: ir.Node) -> None:
    """MEAN or REDUCE_MAX over all axes between batch and channels."""
    rank = len(t.shape(node.inputs[0]))
    x = t.read(node.inputs[0], last(rank))
    kind = "MEAN" if node.op_type == "GlobalAveragePool" else "REDUCE_MAX"
    inputs = [x.index, t.list_of(range(1, rank - 1))]
    t.write(node.outputs[0], kind, inputs, last(rank), keepDims=True)


OPERATORS = {"MaxPool": pool, "AveragePool": pool, "GlobalAveragePool": over_all, "GlobalMaxPool": over_all}
