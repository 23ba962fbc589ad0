"""A product of two matrices and the row added to it, as one Gemm."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, stand_for
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant, only_reader, rank_of, static_shape

__all__ = ["fuse_gemm"]

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})


def fuse_gemm(model: ir.Model) -> list[Note]:
    """Write each MatMul of a matrix by a constant one, with a constant row added behind it alone, as a Gemm.

    Args:
        model: changed in place. The Gemm has the name of the MatMul, and its output that of the Add.

    Returns:
        One note with the number of pairs, if any.
    """
    count = 0
    for node in list(all_nodes(model)):
        found = _row_added(node)
        if found is None:
            continue
        add, row = found
        gemm = ir.node("Gemm", [node.inputs[0], node.inputs[1], row], name=node.name)
        stand_for(gemm, [node, add])
        replace_nodes([node, add], gemm)
        count += 1
    return [Note("fuse_gemm", "", f"{count} products with a row added are Gemm")] if count else []


def _row_added(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add behind a MatMul and the row that it adds."""
    if node.op_type != "MatMul" or node.domain != "":
        return None
    data, weight = node.inputs
    if data is None or weight is None or data.dtype not in _FLOATS or not is_constant(weight):
        return None
    if rank_of(data) != 2 or weight.shape is None or len(weight.shape) != 2:
        return None
    add = only_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or add.domain != "" or add.graph is not node.graph:
        return None
    row = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
    sizes = static_shape(row)
    if row is None or not is_constant(row) or row.dtype is not data.dtype:
        return None
    return (add, row) if sizes and sizes[-1] == weight.shape[1] and sizes in ((sizes[-1],), (1, sizes[-1])) else None
