"""What an error of a layer's weight shifts its outputs by, on inputs of known means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["expected_shift"]


def expected_shift(node: ir.Node, error: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected error of each output channel, (outputs,).

    Args:
        node: Conv or Gemm.
        error: of its weight, of the weight's shape.
        mean: of each channel of its input, (inputs,), over samples and positions.
    """
    if node.op_type == "Gemm":
        matrix = error if node.attributes.get_int("transB", 0) else error.T
        return np.asarray(np.einsum("oi,i->o", matrix, mean, dtype=np.float64))
    group = node.attributes.get_int("group", 1)
    rows = error.reshape(group, error.shape[0] // group, -1)
    taps = _inside(node, error.shape[2:])
    channels = (mean.reshape(group, -1, 1) * taps.reshape(1, 1, -1)).reshape(group, -1)
    return np.asarray(np.einsum("goi,gi->go", rows, channels, dtype=np.float64).reshape(-1))


def _inside(node: ir.Node, kernel: Sequence[int]) -> NDArray[np.float64]:
    """Share of the output positions at which each tap of a Conv's kernel lies on its input, not on the padding.

    Ones where the size of the input is free, or the padding is left to ``auto_pad``.
    """
    data, rank, get = node.inputs[0], len(kernel), node.attributes
    sizes = list(data.shape)[2:] if data is not None and data.shape is not None else []
    pads = get.get_ints("pads", (0,) * (2 * rank))
    strides, dilations = get.get_ints("strides", (1,) * rank), get.get_ints("dilations", (1,) * rank)
    shares = np.ones(())
    for axis, taps in enumerate(kernel):
        size = sizes[axis] if len(sizes) == rank else None
        share = np.ones(taps)
        if isinstance(size, int) and size > 0 and get.get_string("auto_pad", "NOTSET") == "NOTSET" and any(pads):
            reach = dilations[axis] * (taps - 1) + 1
            count = (size + pads[axis] + pads[axis + rank] - reach) // strides[axis] + 1
            starts = np.arange(max(count, 1)) * strides[axis] - pads[axis]
            read = starts[:, None] + dilations[axis] * np.arange(taps)
            share = ((read >= 0) & (read < size)).mean(axis=0)
        shares = shares[..., None] * share
    return shares
