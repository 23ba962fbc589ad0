"""Operators that compute each row, or each element, by itself, on tensors of fewer dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.between_reshapes import between_reshapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import static_shape

__all__ = ["flatten_rows"]

_NAMES = (
    "Abs Asin Atan Ceil Clip Cos Elu Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg Reciprocal Relu Round "
    "Selu Sigmoid Sign Sin Softplus Sqrt Tan Tanh ThresholdedRelu"
)
_ELEMENTS = frozenset(_NAMES.split())
"""Operators that compute each element by itself."""
_ROWS = frozenset({"LayerNormalization", "LogSoftmax", "LpNormalization", "Softmax"})
"""Operators that may compute along the last axis alone."""


def flatten_rows(model: ir.Model, most: int, wants: Callable[[ir.Node], bool]) -> list[Note]:
    """Merge the first axes of what a node reads and writes, so that ``most`` are left, with Reshapes around it.

    Such nodes are functions of each element, a normalization, Softmax or LogSoftmax along the last axis, as of opset
    13, and a product with one matrix. The numbers are the same. Left are tensors of no elements, and those of more
    than one size that is not known.

    Args:
        model: changed in place, its shapes inferred. A node keeps its name, its output too.
        most: dimensions that may stay, at least 2.
        wants: which nodes; others are left.

    Returns:
        One note with the number of nodes, if any.
    """
    namer = Namer(model)
    count = 0
    for node in [node for node in all_nodes(model) if node.domain == "" and node.inputs and wants(node)]:
        value = node.inputs[0]
        if value is None or value.shape is None or len(value.shape) <= most or len(node.outputs) > 1:
            continue
        sizes = [size if isinstance(size, int) else -1 for size in value.shape]
        if not _along_rows(node, len(sizes)) or sizes.count(-1) > 1 or 0 in sizes:
            continue
        columns = _columns(node, sizes[-1])
        first = max(prod(sizes[: 1 - most]), -1)
        if "axis" in node.attributes:
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
        flat = [first, *sizes[1 - most :]]
        given = [flat, *(None for _ in node.inputs[1:])]
        between_reshapes(node, given, [*flat[:-1], columns], [*sizes[:-1], columns], namer)
        count += 1
    return [Note("flatten_rows", "", f"{count} nodes compute on {most} dimensions")] if count else []


def _columns(node: ir.Node, size: int) -> int:
    """The size of the last axis of what a node writes."""
    matrix = static_shape(node.inputs[1]) if node.op_type == "MatMul" else None
    return size if matrix is None else matrix[1]


def _along_rows(node: ir.Node, rank: int) -> bool:
    """Whether no axis but the last of this many matters to a node."""
    if node.op_type == "MatMul":
        matrix = static_shape(node.inputs[1])
        return matrix is not None and len(matrix) == 2
    if node.op_type in _ROWS:
        return node.attributes.get_int("axis", -1) in (-1, rank - 1)
    return node.op_type in _ELEMENTS
