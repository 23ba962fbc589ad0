"""What the kernel of a convolution lies over, position by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.windows import pads_of

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
    data = np.pad(data, [(0, 0), (0, 0), *pads_of(node, data.shape[2:], strides, reach)])
    windows = np.lib.stride_tricks.sliding_window_view(data, reach, axis=tuple(range(2, data.ndim)))
    step = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
    return windows[step + tuple(slice(None, None, d) for d in dilations)]


def _ints(given: Sequence[int] | None, count: int) -> list[int]:
    return list(given) if given else [1] * count
