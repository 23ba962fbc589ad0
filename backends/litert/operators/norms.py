"""Normalizations, in float: means and variances over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.operators.reductions import mean_over
from onnxq.backends.litert.placed import Placed, RefusedError, last
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_PLANES = 4


def _finish(t: Translation, node: ir.Node, made: Placed) -> None:
    t.flat.rename(made.index, node.outputs[0].name or "")
    t.place(node.outputs[0], made)


def _normalized(t: Translation, x: Placed, axes: Sequence[int], epsilon: float) -> Placed:
    """(x - mean) / sqrt(variance + epsilon)."""
    centred = t.compute("SUB", [x, mean_over(t, x, axes)])
    variance = mean_over(t, t.compute("SQUARE", [centred]), axes)
    return t.compute("MUL", [centred, _inverse_root(t, variance, epsilon)])


def _inverse_root(t: Translation, x: Placed, epsilon: float) -> Placed:
    return t.compute("RSQRT", [t.compute("ADD", [x, t.scalar(epsilon, x)])])


def _along(t: Translation, value: ir.Value | None, x: Placed) -> Placed:
    """A constant that is broadcast to a tensor, in its order."""
    array = t.numbers(value)
    if array is None:
        raise RefusedError("its scale or its bias is computed")
    wide = array.reshape((1,) * (len(x.shape) - array.ndim) + array.shape).transpose(x.order)
    return t.constant((value.name if value is not None else None) or "", wide, order=x.order)


def over_last(t: Translation, node: ir.Node) -> None:
    """LayerNormalization over the axes from one on."""
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise RefusedError("its mean or deviation is read")
    x = t.read(node.inputs[0])
    rank = len(x.shape)
    first = node.attributes.get_int("axis", -1) % rank
    made = _normalized(t, x, range(first, rank), node.attributes.get_float("epsilon", 1e-5))
    for kind, value in zip(("MUL", "ADD"), node.inputs[1:], strict=False):
        if value is not None:
            made = t.compute(kind, [made, _along(t, value, made)])
    _finish(t, node, made)


def by_root_mean_square(t: Translation, node: ir.Node) -> None:
    """RMSNormalization over the axes from one on."""
    x = t.read(node.inputs[0])
    rank = len(x.shape)
    first = node.attributes.get_int("axis", -1) % rank
    square = mean_over(t, t.compute("SQUARE", [x]), range(first, rank))
    made = t.compute("MUL", [x, _inverse_root(t, square, node.attributes.get_float("epsilon", 1e-5))])
    _finish(t, node, t.compute("MUL", [made, _along(t, node.inputs[1], made)]))


def over_pictures(t: Translation, node: ir.Node) -> None:
    """InstanceNormalization: each channel of each sample by itself."""
    rank = len(t.shape(node.inputs[0]))
    x = t.read(node.inputs[0], last(rank))
    made = _normalized(t, x, range(2, rank), node.attributes.get_float("epsilon", 1e-5))
    for kind, value in zip(("MUL", "ADD"), node.inputs[1:], strict=True):
        array = t.numbers(value)
        if array is None:
            raise RefusedError("its scale or its bias is computed")
        made = t.compute(kind, [made, _channels(t, array, made)])
    _finish(t, node, made)


def _channels(t: Translation, array: Any, x: Placed) -> Placed:
    """Numbers of channels, the second axis, or of the only one's elements, which share one."""
    shape = [1] * len(x.shape)
    if len(shape) > 1:
        shape[x.order.index(1)] = array.size
    return t.constant("channels", np.asarray(array, np.float32).reshape(shape), order=x.order)


def alone(t: Translation, node: ir.Node) -> None:
    """BatchNormalization that folds into no layer."""
    if node.attributes.get_int("training_mode", 0):
        raise RefusedError("it is in training mode")
    arrays = [t.numbers(value) for value in node.inputs[1:]]
    if any(array is None for array in arrays):
        raise RefusedError("its numbers are computed")
    scale, shift, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    x = t.read(node.inputs[0])
    made = t.compute("MUL", [x, _channels(t, factor, x)])
    _finish(t, node, t.compute("ADD", [made, _channels(t, shift - mean * factor, x)]))


def to_length_one(t: Translation, node: ir.Node) -> None:
    """LpNormalization of the second norm, L2_NORMALIZATION over the last axis that is stored."""
    rank = len(t.shape(node.inputs[0]))
    axis = node.attributes.get_int("axis", -1) % rank
    if node.attributes.get_int("p", 2) != 2:
        raise RefusedError("TensorFlow Lite has no normalization by another norm than the second")
    x = t.read(node.inputs[0])
    if x.order[-1] != axis:
        x = t.read(node.inputs[0], (*(one for one in range(rank) if one != axis), axis))
    t.write(node.outputs[0], "L2_NORMALIZATION", [x.index], x.order)


def over_neighbours(t: Translation, node: ir.Node) -> None:
    """LRN, over channels at the end."""
    get = node.attributes
    size = get.get_int("size", 1)
    if size % 2 == 0 or len(t.shape(node.inputs[0])) != _PLANES:
        raise RefusedError("TensorFlow Lite has local response normalization of pictures, over as many on both sides")
    x = t.read(node.inputs[0], last(_PLANES))
    options = {
        "radius": size // 2,
        "bias": get.get_float("bias", 1.0),
        "alpha": get.get_float("alpha", 1e-4) / size,
        "beta": get.get_float("beta", 0.75),
    }
    t.write(node.outputs[0], "LOCAL_RESPONSE_NORMALIZATION", [x.index], x.order, **options)


OPERATORS: dict[str, Any] = {
    "BatchNormalization": alone,
    "InstanceNormalization": over_pictures,
    "LRN": over_neighbours,
    "LayerNormalization": over_last,
    "LpNormalization": to_length_one,
    "RMSNormalization": by_root_mean_square,
}
