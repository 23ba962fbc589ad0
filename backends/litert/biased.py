"""Products of tokens with a matrix, and the bias behind them, as one operator: FULLY_CONNECTED has both."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.between_reshapes import between_reshapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, only_reader

__all__ = ["biased_products"]


def biased_products(model: ir.Model) -> list[Note]:
    """Write a MatMul of more than two axes by a constant matrix, and an Add of a constant vector, as a Gemm.

    As two operators of integers they round twice. Reshape nodes stand before and behind the Gemm. Left are those with
    more than one free size.

    Args:
        model: changed in place, shapes inferred. The MatMul's node and what the Add writes keep their names.

    Returns:
        One note with the number of products, if any.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        found = _added_to(node)
        data = node.inputs[0]
        if found is None or data is None or data.shape is None or node.inputs[1] is None:
            continue
        add, bias = found
        sizes = [size if isinstance(size, int) else -1 for size in data.shape]
        if sizes.count(-1) > 1:
            continue
        gemm = ir.node("Gemm", [data, node.inputs[1], bias], name=node.name)
        stand_for(gemm, [node, add])
        weight = constant_array(node.inputs[1])
        assert weight is not None
        columns = weight.shape[1]
        replace_nodes([node, add], gemm)
        between_reshapes(gemm, [[-1, sizes[-1]], None, None], [-1, columns], [*sizes[:-1], columns], namer)
        count += 1
    return [Note("biased_products", "", f"{count} products have their bias in them")] if count else []


def _added_to(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add behind a MatMul of several rows of tokens with a matrix, and the vector that it adds."""
    if node.op_type != "MatMul" or node.domain != "":
        return None
    data, weight = node.inputs[0], constant_array(node.inputs[1])
    add = only_reader(node.outputs[0])
    if weight is None or weight.ndim != 2 or data is None or data.shape is None or len(data.shape) < 3:
        return None
    if add is None or add.op_type != "Add" or add.domain != "":
        return None
    bias = next((value for value in add.inputs if value is not node.outputs[0]), None)
    array = constant_array(bias)
    return (add, bias) if bias is not None and array is not None and array.shape == weight.shape[1:] else None
