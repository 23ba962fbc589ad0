"""Forms of operators that LiteRT has kernels of integers for; others are float in the plan."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq.backends.litert.placed import RefusedError
from onnxq.backends.litert.windows import is_same, windows_of
from onnxq.graph.values import constant_array
from onnxq.rows import plain_gemm

__all__ = [
    "adds_a_vector",
    "has_slopes_of_channels",
    "is_a_table",
    "means_whole_windows",
    "of_planes",
    "rises",
    "steep_by_one",
]

_PLANES = 4
_LEAST_TABLE = 4096
"""Elements."""


def of_planes(node: ir.Node) -> str | None:
    """A convolution over one axis or two."""
    weight = node.inputs[1]
    volumes = weight is not None and weight.shape is not None and len(weight.shape) > _PLANES
    return "TensorFlow Lite convolves volumes in float" if volumes else None


def adds_a_vector(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b, b one row."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    shape = bias.shape if bias is not None else None
    rows = math.prod(size for size in shape[:-1] if isinstance(size, int)) if shape is not None else 1
    return plain_gemm(node) or ("TensorFlow Lite adds no matrix to a product in integers" if rows != 1 else None)


def steep_by_one(node: ir.Node) -> str | None:
    """An Elu whose alpha is 1."""
    return None if node.attributes.get_float("alpha", 1.0) == 1.0 else "TensorFlow Lite has ELU with alpha 1"


def is_a_table(node: ir.Node) -> str | None:
    """A Gather that picks rows of a constant table, large enough to be worth storing in integers."""
    table = node.inputs[0]
    if table is None or table.shape is None or len(table.shape) != 2 or node.attributes.get_int("axis", 0) != 0:
        return "not a table of rows"
    size = math.prod(d for d in table.shape if isinstance(d, int))
    return "too small a table to store in integers" if size < _LEAST_TABLE else None


def rises(node: ir.Node) -> str | None:
    """A HardSigmoid that rises."""
    return None if node.attributes.get_float("alpha", 0.2) > 0 else "it falls, or stays where it is"


def has_slopes_of_channels(node: ir.Node) -> str | None:
    """A PRelu of constant slopes, the same for all samples unless they are up to 1: then products and maxima do."""
    slopes, x = constant_array(node.inputs[1]), node.inputs[0]
    rank = len(x.shape) if x is not None and x.shape is not None else 0
    if slopes is None:
        return "its slopes are computed"
    by_sample = slopes.ndim == rank and slopes.shape[0] != 1
    return "its slopes differ from sample to sample, and are above 1" if by_sample and (slopes > 1).any() else None


def means_whole_windows(node: ir.Node) -> str | None:
    """A mean pool whose padding is that of SAME, or counts."""
    data, made, kernel = node.inputs[0], node.outputs[0], node.attributes.get_ints("kernel_shape", ())
    if data is None or data.shape is None or made.shape is None or node.attributes.get_int("count_include_pad", 0) == 1:
        return None
    sizes, counts = ([size for size in shape[2:] if isinstance(size, int)] for shape in (data.shape, made.shape))
    if not len(sizes) == len(counts) == len(kernel):
        return None
    try:
        windows = windows_of(node, sizes, kernel, counts)
    except RefusedError:
        return None
    padded = any(window.begin or window.end for window in windows)
    return "its means leave out padding that TensorFlow Lite's do not" if padded and not is_same(windows) else None
