"""Channels of a weight that are zero throughout: any zero point is right for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.graph.values import constant_array
from onnxq.qparams import QParams
from onnxq.spec import PerChannel

__all__ = ["one_zero_point"]


def one_zero_point(value: ir.Value | None, numbers: QParams) -> QParams:
    """The numbers of a weight, its channels of zeros with the zero point of the others.

    onnxruntime's quantizer gives such a channel the zero point 0 also where those of the others are 128. Its kernels of
    depthwise convolutions take ten times as long with several zero points, and other targets have one for all channels.

    Args:
        value: the weight.
        numbers: as they were given; returned where nothing is to be done.
    """
    grain, given = numbers.spec.granularity, numbers.zero_point
    if not isinstance(grain, PerChannel) or given.size < 2 or (given == given.flat[0]).all():
        return numbers
    array = constant_array(value)
    if array is None or array.shape[grain.axis] != given.size:
        return numbers
    some = np.moveaxis(array, grain.axis, 0).reshape(given.size, -1).any(axis=1)
    others = np.unique(given.reshape(-1)[some])
    if others.size != 1:
        return numbers
    return replace(numbers, zero_point=np.full_like(given, others[0]))
