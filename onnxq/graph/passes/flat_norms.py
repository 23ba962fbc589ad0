"""A batch normalization of a product's rows, which a Flatten or Reshape makes of it, becomes arithmetic.

LeViT normalizes what its dense layers give so: ``MatMul → Flatten → BatchNormalization → Reshape``. Channels are the
last axis of both; as ``Mul`` and ``Add`` in front of the Flatten the normalization is folded into the layer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, set_constant, stand_for
from onnxq.graph.layer import Refusal
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.fold_batchnorm import batchnorm_affine
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import is_constant, only_reader

__all__ = ["flat_norms"]


def flat_norms(model: ir.Model) -> list[Note]:
    """Write batch normalizations of rows that a product makes as Mul and Add.

    Args:
        model: changed in place; constants must be folded and shapes known.

    Returns:
        A note of how many were written so, if any.
    """
    namer = Namer(model)
    done = 0
    for graph in all_graphs(model):
        for node in list(graph):
            layer = _layer_of_rows(node)
            if layer is not None and isinstance(graph, ir.Graph):
                done += _write(node, layer, graph, namer)
    text = f"{done} batch normalizations of rows became arithmetic"
    return [Note("flat_norms", "", text)] if done else []


def _layer_of_rows(node: ir.Node) -> ir.Node | None:
    """The product with constant weights whose rows, in more axes at first, a node normalizes; None for any other."""
    if node.op_type != "BatchNormalization" or node.domain != "":
        return None
    rows = node.inputs[0]
    step = rows.producer() if rows is not None else None
    if rows is None or step is None or step.domain != "" or step.op_type not in ("Flatten", "Reshape"):
        return None
    product = step.inputs[0]
    layer = product.producer() if product is not None else None
    if product is None or layer is None or layer.op_type != "MatMul" or not is_constant(layer.inputs[1]):
        return None
    if only_reader(rows) is not node or product.is_graph_output() or product.dtype != ir.DataType.FLOAT:
        return None
    if any(use.node is not step and use.node.op_type != "Shape" for use in product.uses()):
        return None
    if rows.shape is None or product.shape is None or len(rows.shape) != 2 or len(product.shape) < 2:
        return None
    return layer if isinstance(rows.shape[1], int) and rows.shape[1] == product.shape[-1] else None


def _write(node: ir.Node, layer: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
    """Write a normalization as Mul and Add behind the product; False where its numbers are not known."""
    try:
        scale, shift = batchnorm_affine(node)
    except Refusal:
        return False
    product, rows = layer.outputs[0], node.inputs[0]
    assert rows is not None
    factor = set_constant(graph, namer, f"{node.name}_scale", scale.astype(np.float32))
    term = set_constant(graph, namer, f"{node.name}_shift", shift.astype(np.float32))
    mul = ir.node("Mul", [product, factor], name=namer.node(f"{node.name}_Mul"))
    add = ir.node("Add", [mul.outputs[0], term], name=namer.node(f"{node.name}_Add"))
    for value, part in ((mul.outputs[0], "scaled"), (add.outputs[0], "normalized")):
        value.name, value.type = namer.fresh(f"{node.name}_{part}"), product.type
        value.shape = product.shape.copy() if product.shape is not None else None
    stand_for(add, [node])
    for reader, index in list(product.uses()):
        if reader is not mul:
            reader.replace_input_with(index, add.outputs[0])
    graph.insert_after(layer, (mul, add))
    rename_output(rows, node.outputs[0])
    remove_nodes([node])
    return True
