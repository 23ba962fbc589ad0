"""Pools over one axis or two, and over all of a picture."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.operators.padding import padded, sides_padded
from onnxq.backends.litert.placed import RefusedError, last
from onnxq.backends.litert.translation import Translation
from onnxq.backends.litert.windows import Window, is_same, windows_of

__all__ = ["OPERATORS"]

_LINES, _PLANES = 3, 4


def pool(t: Translation, node: ir.Node) -> None:
    """MAX_POOL_2D or AVERAGE_POOL_2D."""
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
    same, padding = is_same(windows), any(w.begin or w.end for w in windows)
    counts_padding = node.attributes.get_int("count_include_pad", 0) == 1
    if counts_padding and _grown(node, windows):
        raise RefusedError("it counts padding, and rounds its number of windows up")
    uneven = False
    if padding and not (same and (largest or not counts_padding)):
        uneven = not largest and not counts_padding
        if uneven and t.integer:
            raise RefusedError("its means leave out padding that TensorFlow Lite's do not")
        x, same = padded(t, x, sides_padded(windows), None if largest else 0.0), False
    if rank == _LINES:
        batch, length, channels = x.shape
        x = t.reshaped(x, (batch, 1, length, channels), last(_PLANES))
        windows = [Window(1, 1, 1, 1, 0, 0), *windows]
    options = {
        "padding": "SAME" if same and padding else "VALID",
        "strideH": windows[0].step,
        "strideW": windows[1].step,
        "filterHeight": windows[0].kernel,
        "filterWidth": windows[1].kernel,
    }
    kind = "MAX_POOL_2D" if largest else "AVERAGE_POOL_2D"
    batch, channels, *sizes = t.shape(value)
    height, width = (1, *sizes) if rank == _LINES else sizes
    made = t.new(value, last(_PLANES), (batch, height, width, channels))
    t.flat.operator(kind, [x.index], [made.index], **options)
    if uneven:
        made = t.compute("MUL", [made, t.constant("shares", _shares(windows, (height, width)), order=made.order)])
    t.place(
        value, made if rank == _PLANES else t.reshaped(made, (batch, width, channels), last(rank), value.name or "")
    )


def _grown(node: ir.Node, windows: list[Window]) -> bool:
    """Whether windows reach beyond the padding that a pool says."""
    pads = node.attributes.get_ints("pads", ()) or (0,) * 2 * len(windows)
    automatic = node.attributes.get_string("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return not automatic and any(w.end > end for w, end in zip(windows, pads[len(windows) :], strict=True))


def _shares(windows: list[Window], counts: tuple[int, ...]) -> NDArray[np.float32]:
    """What a mean over whole windows is to be multiplied by: elements of a window by those inside of the input."""
    inside = []
    for window, count in zip(windows, counts, strict=True):
        starts = np.arange(count) * window.step - window.begin
        ends = np.minimum(starts + window.kernel, window.size)
        inside.append(ends - np.maximum(starts, 0))
    area = math.prod(window.kernel for window in windows)
    shares: NDArray[np.float32] = (area / np.outer(*inside)).astype(np.float32)
    return shares[None, :, :, None]


def over_all(t: Translation, node: ir.Node) -> None:
    """MEAN or REDUCE_MAX over all axes between batch and channels."""
    rank = len(t.shape(node.inputs[0]))
    x = t.read(node.inputs[0], last(rank))
    kind = "MEAN" if node.op_type == "GlobalAveragePool" else "REDUCE_MAX"
    inputs = [x.index, t.list_of(range(1, rank - 1))]
    t.write(node.outputs[0], kind, inputs, last(rank), keepDims=True)


OPERATORS = {"MaxPool": pool, "AveragePool": pool, "GlobalAveragePool": over_all, "GlobalMaxPool": over_all}
