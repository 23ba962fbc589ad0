"""Why the weight of a node is not stored as integers in blocks."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq.graph.values import is_constant
from onnxq.options.selection import Selection
from onnxq.planning.weightless import ALREADY, reads_quantized, why_no_weights

__all__ = ["LEAST", "is_given", "is_weight", "shape_of", "why_float"]

LEAST = 1024
"""Numbers of a weight that is worth a node of its own."""
_LEAST_INPUTS = 16
_STORED = ("MatMul", "Gemm", "Gather")


def why_float(node: ir.Node, selection: Selection, *, deep: bool) -> str | None:
    """Why the weight of a node is not stored in blocks; None where it is.

    Args:
        node: reads a float constant, or an integer one that stands for floats.
        selection: what the user asked for.
        deep: whether tables of more than two axes are stored.
    """
    if (why := selection.why_out(node)) is not None:
        return why
    if why := why_no_weights(node) if node.op_type not in _STORED else None:
        return why
    if node.op_type not in _STORED or node.domain != "":
        return "only weights of MatMul, Gemm and Gather are stored in blocks"
    value = node.inputs[0 if node.op_type == "Gather" else 1]
    if is_given(node):
        return ALREADY
    if not is_weight(value) or value is None or value.const_value is None:
        return "its constant is the left operand"
    if not is_constant(value):
        return "its weight is an input that may be overridden"
    if value.is_graph_output():
        return "its weight is an output of the model"
    if value.const_value.dtype != ir.DataType.FLOAT:
        return f"its weight is {value.const_value.dtype.name.lower()}"
    shape = shape_of(value)
    if node.op_type == "Gather" and len(shape) > 2 and not deep:
        return (
            f"its table has {len(shape)} axes: unpacking blocks of matrices would take longer than all else. "
            "weight_only:format=matmulnbits stores them, and so does --algorithm dynamic"
        )
    if len(shape) != 2 and node.op_type != "Gather":
        return f"its weight has {len(shape)} axes, not 2"
    if math.prod(shape) < LEAST:
        return f"its weight has fewer than {LEAST} numbers"
    attributes = node.attributes
    if node.op_type == "Gather":
        inputs = shape[-1]
        if attributes.get_int("axis", 0) not in (0, -len(shape)):
            return "it picks columns"
    else:
        inputs = shape[1] if node.op_type == "Gemm" and attributes.get_int("transB", 0) == 1 else shape[0]
        data = node.inputs[0]
        if data is None or is_constant(data) or (data.shape is not None and len(data.shape) < 2):
            return "its data has fewer than 2 axes, or is constant"
    if inputs < _LEAST_INPUTS:
        return f"its weight has {inputs} inputs, fewer than the smallest block"
    if node.op_type == "Gemm" and attributes.get_int("transA", 0) == 1:
        return "it transposes its data"
    if node.op_type == "Gemm" and (attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)) != (1, 1):
        return "its alpha or beta is not 1"
    return None


def is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a float constant of two axes or more; vectors and scalars are not worth a word."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
    return value.const_value.dtype in floats and sum(n > 1 for n in shape_of(value)) > 1


def is_given(node: ir.Node) -> bool:
    """Whether the weight of a product, or a table, is quantized in the model given."""
    position = 0 if node.op_type == "Gather" else 1
    return node.op_type in _STORED and reads_quantized(node, slice(position, position + 1))


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Sizes of a constant."""
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())
