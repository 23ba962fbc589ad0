"""Products of matrices by vectors as products by matrices of one column, where onnxruntime gets the former wrong."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["vector_products"]

_SQUEEZE_OPSET = 13
"""From here on Squeeze has its axes as an input."""


def vector_products(model: ir.Model) -> list[Note]:
    """Write each MatMul by a vector of a model with a Transpose as one by a matrix of one column, and a Squeeze.

    onnxruntime 1.31 fuses a Transpose into the MatMul behind it, also one that it moved there through other nodes, and
    then takes a vector for one row. What it computes of the float model is wrong, and so were ranges observed there.

    Args:
        model: changed in place. The node keeps its name, its output too.

    Returns:
        One note with the number of products, if any.
    """
    nodes = list(all_nodes(model))
    if model.opset_imports.get("", 0) < _SQUEEZE_OPSET or not any(node.op_type == "Transpose" for node in nodes):
        return []
    namer = Namer(model)
    found = [node for node in nodes if _by_vector(node)]
    for node in found:
        _widen(node, namer)
    return [Note("vector_products", "", f"{len(found)} products by vectors are by a column")] if found else []


def _by_vector(node: ir.Node) -> bool:
    if node.op_type != "MatMul" or node.domain != "":
        return False
    read = [value for value in node.inputs if value is not None and value.dtype is ir.DataType.FLOAT]
    ranks = [len(value.shape) for value in read if value.shape is not None]
    makers = [maker for value in read if (maker := value.producer()) is not None]
    if any(maker.op_type == "DequantizeLinear" or maker.domain != "" for maker in makers):
        return False  # quantized already: nothing is fused there
    return len(ranks) == 2 and ranks[0] > 1 and ranks[1] == 1


def _widen(node: ir.Node, namer: Namer) -> None:
    vector, old, graph = node.inputs[1], node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph) and vector is not None
    array = constant_array(vector)
    if array is not None:
        home = vector.graph if isinstance(vector.graph, ir.Graph) else graph
        column = set_constant(home, namer, f"{vector.name}_column", array[:, None])
    else:
        axes = set_constant(graph, namer, f"{vector.name}_axis", np.asarray([1]))
        unsqueeze = ir.node("Unsqueeze", [vector, axes], name=namer.node(f"{node.name}_Unsqueeze"))
        column = unsqueeze.outputs[0]
        column.name, column.type = namer.fresh(f"{vector.name}_column"), vector.type
        column.shape = ir.Shape([*vector.shape, 1]) if vector.shape is not None else None
        graph.insert_before(node, [unsqueeze])
    made = ir.node("MatMul", [node.inputs[0], column], name=node.name)
    product = made.outputs[0]
    product.name, product.type = namer.fresh(f"{old.name}_column"), old.type
    product.shape = ir.Shape([*old.shape, 1]) if old.shape is not None else None
    last = set_constant(graph, namer, f"{old.name}_axis", np.asarray([-1]))
    squeeze = ir.node("Squeeze", [product, last], name=namer.node(f"{node.name}_Squeeze"))
    replace_nodes([node], made, squeeze)
