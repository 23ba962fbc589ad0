"""How many multiply-accumulates a layer takes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from onnxq.graph.values import input_of, is_constant
from onnxq.planning.placement import elements

__all__ = ["multiply_accumulates", "size_of"]

_RECURRENT = ("GRU", "LSTM", "RNN")


def multiply_accumulates(node: ir.Node, sizes: Mapping[str, int]) -> int:
    """Multiply-accumulates of a layer with constant weights for a sample; of others one for each weight.

    Args:
        node: the layer. What picks rows takes none.
        sizes: tensor name → number of elements, where data has shown it; else the shapes in the model are used.
    """
    if node.op_type == "Gather":
        return 0
    shapes = [shape for value in node.inputs if (shape := _constant_shape(value)) is not None and len(shape) > 1]
    count = sum(map(math.prod, shapes))
    weight = _constant_shape(input_of(node, 1))
    if not weight:
        return count
    data, made = size_of(node.inputs[0], sizes), size_of(node.outputs[0], sizes)
    if node.op_type in _RECURRENT:
        return data // max(weight[-1], 1) * count
    if node.op_type == "ConvTranspose":
        return data * math.prod(weight) // max(weight[0], 1)
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return count
    first = node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1
    return made * math.prod(weight) // max(weight[0] if first else weight[-1], 1)


def size_of(value: ir.Value | None, sizes: Mapping[str, int]) -> int:
    """Number of elements of a tensor, see :func:`multiply_accumulates`."""
    return 0 if value is None else sizes.get(value.name or "") or elements(value)


def _constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return tuple(value.const_value.shape.numpy())
