"""Why the weight of a node is not stored as integers in blocks."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq.graph.values import is_constant
from onnxq.options.selection import Selection
from onnxq.planning.weightless import ALREADY, reads_quantized, why_no_weights

__all__ = ["LEAST", "NOT_STORED", "is_given", "is_weight", "shape_of", "why_float"]

LEAST = 1024
"""Numbers of a weight that is worth a node of its own."""
_LEAST_INPUTS = 16
_STORED = ("MatMul", "Gemm", "Gather")
NOT_STORED = "only weights of MatMul, Gemm and Gather are stored in blocks"
_SMALL = f"its weight has fewer than {LEAST} numbers"


def why_float(node: ir.Node, selection: Selection, *, deep: bool) -> str | None:
    """Why the weight of a node is not stored in blocks; None where it is.

    Args:
        node: reads a float constant, or an integer one that stands for floats.
        selection: what the user asked for.
        deep: whether tables of more than two axes are stored.
    """
    if (why := selection.why_out(node)) is not None:
        return why
    if node.op_type not in _STORED and (why := why_no_weights(node)):
        return why
    if node.op_type not in _STORED or node.domain != "":
        return NOT_STORED
    if is_given(node):
        return ALREADY
    value = node.inputs[_position(node)]
    if not is_weight(value) or value is None or value.const_value is None:
        return "its constant is the left operand"
    if not is_constant(value):
        return "its weight is an input that may be overridden"
    if value.is_graph_output():
        return "its weight is an output of the model"
    if value.const_value.dtype != ir.DataType.FLOAT:
        return f"its weight is {value.const_value.dtype.name.lower()}"
    shape = shape_of(value)
    rows = _of_table(node, shape, deep) if node.op_type == "Gather" else _of_product(node, shape)
    return next((why for holds, why in rows if holds), None)


def _of_table(node: ir.Node, shape: tuple[int, ...], deep: bool) -> tuple[tuple[bool, str], ...]:
    """What keeps a table of this shape float, and whether it holds for one: the first that does is the reason."""
    deeper = (
        f"its table has {len(shape)} axes: unpacking blocks of matrices would take longer than all else. "
        "weight_only:format=matmulnbits stores them, and so does --algorithm dynamic"
    )
    return (
        (len(shape) > 2 and not deep, deeper),
        (math.prod(shape) < LEAST, _SMALL),
        (node.attributes.get_int("axis", 0) not in (0, -len(shape)), "it picks columns"),
        _narrow(shape[-1]),
    )


def _of_product(node: ir.Node, shape: tuple[int, ...]) -> tuple[tuple[bool, str], ...]:
    """The same of the weight of a product, whose attributes a MatMul has not."""
    attributes, data = node.attributes, node.inputs[0]
    flat = data is None or is_constant(data) or (data.shape is not None and len(data.shape) < 2)
    factors = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    return (
        (len(shape) != 2, f"its weight has {len(shape)} axes, not 2"),
        (math.prod(shape) < LEAST, _SMALL),
        (flat, "its data has fewer than 2 axes, or is constant"),
        _narrow(shape[attributes.get_int("transB", 0)]),
        (attributes.get_int("transA", 0) == 1, "it transposes its data"),
        (factors != (1, 1), "its alpha or beta is not 1"),
    )


def _narrow(inputs: int) -> tuple[bool, str]:
    return inputs < _LEAST_INPUTS, f"its weight has {inputs} inputs, fewer than the smallest block"


def is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a float constant of two axes or more; vectors and scalars are not worth a word."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
    return value.const_value.dtype in floats and sum(n > 1 for n in shape_of(value)) > 1


def is_given(node: ir.Node) -> bool:
    """Whether the weight of a product, or a table, is quantized in the model given."""
    position = _position(node)
    return node.op_type in _STORED and reads_quantized(node, slice(position, position + 1))


def _position(node: ir.Node) -> int:
    """Of the weight among the inputs of a product, or the table's."""
    return 0 if node.op_type == "Gather" else 1


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Sizes of a constant."""
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())
