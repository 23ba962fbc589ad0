"""What the kernel of a convolution lies over, position by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["kernel_windows"]

Floats = NDArray[np.float32]


def kernel_windows(node: ir.Node, data: Floats, kernel: Sequence[int]) -> Floats:
    """The data under the kernel at each output position, padded with zeros: a view, (N, C, *positions, *kernel).

    Args:
        node: a Conv.
        data: what it reads, (N, C, *sizes). What a Loop or Scan collects has one more axis in front.
        kernel: its sizes, one a spatial axis.
    """
    spatial = len(kernel)
    data = data.reshape(-1, *data.shape[data.ndim - spatial - 1 :])
    strides = _ints(node.attributes.get_ints("strides", None), spatial)
    dilations = _ints(node.attributes.get_ints("dilations", None), spatial)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    data = np.pad(data, [(0, 0), (0, 0), *_pads(node, data.shape[2:], strides, reach)])
    windows = np.lib.stride_tricks.sliding_window_view(data, reach, axis=tuple(range(2, data.ndim)))
    step = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
    return windows[step + tuple(slice(None, None, d) for d in dilations)]


def _ints(given: Sequence[int] | None, count: int) -> list[int]:
    return list(given) if given else [1] * count


def _pads(node: ir.Node, shape: Sequence[int], strides: Sequence[int], reach: Sequence[int]) -> list[tuple[int, int]]:
    """Padding in front of and behind each spatial axis."""
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for size, stride, span in zip(shape, strides, reach, strict=True):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            less, more = total // 2, total - total // 2
            pads.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return pads
    given = node.attributes.get_ints("pads", None)
    if not given or auto == "VALID":
        return [(0, 0)] * len(shape)
    half = len(given) // 2
    return list(zip(given[:half], given[half:], strict=True))
