"""Normalizations that are better computed than folded into the layer behind them, whose weight would be too coarse.

A table's columns come in their own units, and a BatchNormalization makes them alike. A weight into which that is folded
has to undo the units: no one scale then fits what one output sums up.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.layer import Channels, Layer
from onnxq.graph.traverse import describe
from onnxq.graph.values import constant_array

__all__ = ["too_uneven"]

_COARSEST = 32.0
"""How many times as much noise (a power, 15 dB) rounding a weight may make for a normalization folded into it."""


def too_uneven(layer: Layer, batchnorm: ir.Node, scale: Channels) -> str | None:
    """Why a batch normalization should not fold into the layer behind it, None where it may.

    Rounding to a share of each output's largest weight makes noise of that share for every channel, in proportion to
    the channel's size: ``variance`` before the normalization, ``gamma`` squared behind it.

    Args:
        layer: with a constant weight.
        batchnorm: in front of it.
        scale: what the normalization multiplies the channels with, (C,).
    """
    gamma, variance = (constant_array(batchnorm.inputs[index]) for index in (1, 4))
    if layer.groups > 1 or gamma is None or variance is None:
        return None
    outputs = layer.out_axis()
    largest = [
        np.square(np.abs(w).max(axis=tuple(axis for axis in range(w.ndim) if axis != outputs)))
        for w in (layer.array(), layer.scaled_inputs(scale))
    ]
    sizes = [np.square(gamma.astype(np.float64)).sum(), variance.astype(np.float64).sum()]
    before, after = (float(np.median(w) * size) for w, size in zip(largest, sizes, strict=True))
    if not after > _COARSEST * before > 0:
        return None
    worse = f"the weight of {describe(layer.node)} would be {10 * np.log10(after / before):.0f} dB coarser"
    return f"its channels differ so much in size that {worse}"
