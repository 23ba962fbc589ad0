"""The windows of a pool or a convolution along each axis of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

__all__ = ["Axis", "axes_of", "pads_of", "share_inside", "share_whole"]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that windows move along.

    Attributes:
        size: of the input.
        begin: padding in front.
        end: padding behind.
        window: elements of a window.
        gap: from one element of a window to the next.
        step: from one window to the next.
        reach: how far windows can move within the padded input.
    """

    size: int
    begin: int
    end: int
    window: int
    gap: int
    step: int
    reach: int


def axes_of(node: ir.Node) -> list[Axis] | None:
    """The axes of a pool, or of a convolution with constant weights, with explicit padding.

    ``None`` where sizes are not known, or the padding is automatic.
    """
    get, x = node.attributes, node.inputs[0]
    weight = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    kernel = get.get_ints("kernel_shape", ()) or (weight.shape.numpy()[2:] if weight is not None else ())
    count = len(kernel)
    sizes = x.shape[2:] if x is not None and x.shape is not None else ()
    if len(sizes) != count or get.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    strides = get.get_ints("strides", ()) or (1,) * count
    dilations = get.get_ints("dilations", ()) or (1,) * count
    pads = get.get_ints("pads", ()) or (0,) * 2 * count
    found = []
    for size, window, step, gap, begin, end in zip(
        sizes, kernel, strides, dilations, pads[:count], pads[count:], strict=True
    ):
        if not isinstance(size, int):
            return None
        found.append(Axis(size, begin, end, window, gap, step, size + begin + end - ((window - 1) * gap + 1)))
    return found


def pads_of(node: ir.Node, shape: Sequence[int], strides: Sequence[int], reach: Sequence[int]) -> list[tuple[int, int]]:
    """Padding in front of and behind each spatial axis of a convolution or pooling, ``auto_pad`` followed.

    Args:
        node: Conv or a pooling.
        shape: spatial sizes of its input.
        strides: for each spatial axis.
        reach: elements that a window spans, for each spatial axis.
    """
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, stride, span in zip(shape, strides, reach, strict=True):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            less, more = total // 2, total - total // 2
            found.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return found
    given = node.attributes.get_ints("pads", None)
    if not given or auto == "VALID":
        return [(0, 0)] * len(shape)
    half = len(given) // 2
    return list(zip(given[:half], given[half:], strict=True))


def share_inside(node: ir.Node) -> float:
    """The share of what windows of a pool or a convolution read that is not padding.

    1 where sizes are not known, or the padding is automatic.
    """
    share = 1.0
    for axis in axes_of(node) or ():
        if axis.reach < 0 or (axis.begin <= 0 and axis.end <= 0):
            continue
        count = axis.reach // axis.step + 1
        first = axis.gap * np.arange(axis.window) - axis.begin  # what each tap of the first window reads
        start = np.clip(-(first // axis.step), 0, count)  # windows whose tap lies in front of the data
        stop = np.clip(-((first - axis.size) // axis.step), 0, count)  # and those whose tap does not lie behind it
        share *= float(np.mean(stop - start)) / count
    return share


def share_whole(node: ir.Node) -> float:
    """The share of windows of a pool or a convolution that reach into no padding along the last axis.

    1 where sizes are not known, or the padding is automatic.
    """
    axes = axes_of(node)
    if not axes or axes[-1].reach < 0:
        return 1.0
    axis = axes[-1]
    starts = axis.step * np.arange(axis.reach // axis.step + 1) - axis.begin
    ends = starts + (axis.window - 1) * axis.gap
    return float(np.mean((starts >= 0) & (ends < axis.size)))
