"""A Gemm with a constant weight becomes a MatMul and an Add, for tools that know no other products."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, set_constant

__all__ = ["split_gemm"]


def split_gemm(model: ir.Model) -> list[Note]:
    """Splits every Gemm that multiplies plain data with a constant; the MatMul takes its name.

    Args:
        model: changed in place. Constants must be folded, and alpha and beta.

    Returns:
        A note with the number of nodes split, if any.
    """
    namer = Namer(model)
    turned: dict[ir.Value, ir.Value] = {}
    count = 0
    for node in list(all_nodes(model)):
        attributes = node.attributes
        if node.op_type != "Gemm" or node.domain != "" or attributes.get_int("transA", 0) == 1:
            continue
        weight, graph = node.inputs[1], node.graph
        array = constant_array(weight)
        if array is None or weight is None or not isinstance(graph, ir.Graph):
            continue
        if attributes.get_float("alpha", 1.0) != 1 or attributes.get_float("beta", 1.0) != 1:
            continue
        if attributes.get_int("transB", 0) == 1:
            if weight not in turned:
                turned[weight] = set_constant(
                    model.graph, namer, f"{weight.name}_transposed", np.ascontiguousarray(array.T)
                )
            weight = turned[weight]
        _split(node, graph, weight, namer)
        count += 1
    for old in turned:
        home = old.graph
        if not old.uses() and isinstance(home, ir.Graph) and not old.is_graph_output():
            home.initializers.pop(old.name or "", None)
    return [Note("split_gemm", "", f"{count} Gemm became MatMul and Add")] if count else []


def _split(node: ir.Node, graph: ir.Graph, weight: ir.Value, namer: Namer) -> None:
    data, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    old, name = node.outputs[0], node.name
    node.name = None
    product = ir.node("MatMul", [data, weight], name=name)
    made = [product]
    out = product.outputs[0]
    if bias is not None:
        out.name, out.type, out.shape = namer.fresh(f"{old.name}_product"), old.type, old.shape
        made.append(ir.node("Add", [out, bias], name=namer.node(f"{name}_bias")))
        out = made[-1].outputs[0]
    final = old.name
    out.type, out.shape, out.doc_string = old.type, old.shape, old.doc_string
    out.metadata_props.update(old.metadata_props)
    graph.insert_before(node, made)
    old.replace_all_uses_with(out, replace_graph_outputs=True)
    old.name = None
    out.name = final
    graph.remove(node, safe=True)
