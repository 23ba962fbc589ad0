"""Forms of operators that LiteRT has kernels of int16 for; others are float in the plan."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.forms import has_slopes_of_channels
from onnxq.graph.values import constant_array, static_shape

__all__ = ["counts_places", "has_slopes_up_to_one", "sums_few"]

_MOST = 1 << 16
"""Numbers of 16 bits that a sum of 32 bits holds."""
_UNITS = 1024
"""Of an element, in which RESIZE_BILINEAR counts places."""
_OFF = 1 / 128
"""Of an element, that a place may be off."""


def has_slopes_up_to_one(node: ir.Node) -> str | None:
    """A PRelu of one constant slope, or of several up to 1."""
    slopes = constant_array(node.inputs[1])
    if slopes is not None and np.unique(slopes).size > 1 and bool((slopes > 1).any()):
        return "TensorFlow Lite's PRELU has no int16, and its slopes are above 1"
    return has_slopes_of_channels(node)


def sums_few(node: ir.Node) -> str | None:
    """A mean or sum of up to 65536 numbers, which 32 bits hold."""
    read, made = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if read is None or made is None or math.prod(read) <= _MOST * math.prod(made):
        return None
    return f"TensorFlow Lite's sums of more than {_MOST} numbers of 16 bits overflow"


def counts_places(node: ir.Node) -> str | None:
    """A Resize to the nearest elements, or between elements whose places are multiples of 1/1024, or nearly."""
    read, made = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if read is None or made is None or node.attributes.get_string("mode", "nearest") != "linear":
        return None
    less = int(node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "align_corners")
    for old, new in ((old - less, new - less) for old, new in zip(read, made, strict=True) if old != new and new > 1):
        counted = (_UNITS * old + new // 2) // new / _UNITS
        if abs(counted - old / new) * new > _OFF:
            return "TensorFlow Lite counts its places in 1024ths of an element, and would be off"
    return None
