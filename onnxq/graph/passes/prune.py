"""What computes nothing: unread nodes and initializers, Identity, Dropout outside training, Casts to the same type, a
maximum with minus infinity."""

from __future__ import annotations

import math
from collections.abc import Container

import numpy as np
import onnx.defs
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, replace_value
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array, input_of

__all__ = ["KEPT", "eliminate_identity", "remove_dead", "remove_unread"]

KEPT = "onnxq.kept"
"""Property of a node that stays though it changes nothing."""

_COUNTED = frozenset({"BatchNormalization"})
"""Whose number of outputs says what it computes."""


def remove_dead(model: ir.Model) -> list[Note]:
    """Removes nodes whose outputs nothing reads, then initializers that nothing reads; graph inputs always stay.

    Args:
        model: changed in place.
    """
    removed = 0
    for graph in reversed(all_graphs(model)):
        for node in reversed(graph):
            if any(value.is_graph_output() or value.uses() for value in node.outputs):
                continue
            remove_nodes([node])
            removed += 1
        for node in graph:
            _drop_unread_outputs(node, model.opset_imports.get("", 1))
    for graph in all_graphs(model):
        remove_unread(graph)
    return [Note("dead", "", f"{removed} nodes that nothing reads removed")] if removed else []


def _drop_unread_outputs(node: ir.Node, opset: int) -> None:
    """Takes optional outputs at the end that nothing reads; runtimes do less with a node that seems to need them."""
    last = node.outputs[-1] if len(node.outputs) > 1 else None
    if last is None or last.uses() or last.is_graph_output() or node.domain != "" or node.op_type in _COUNTED:
        return
    try:
        formal = onnx.defs.get_schema(node.op_type, opset).outputs
    except onnx.defs.SchemaError:
        return  # the checker's business
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    count = len(node.outputs)
    while count > 1 and count <= len(formal) and formal[count - 1].option == optional:
        value = node.outputs[count - 1]
        if value.uses() or value.is_graph_output():
            break
        count -= 1
    if count < len(node.outputs):
        node.resize_outputs(count)


def remove_unread(graph: ir.Graph, among: Container[str] | None = None) -> None:
    """Removes initializers that nothing reads, in place; graph inputs and outputs stay.

    Args:
        graph: one graph, without those inside it.
        among: names of those that may go; all if None.
    """
    for name, value in list(graph.initializers.items()):
        if among is not None and name not in among:
            continue
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


_NEUTRAL = {"Max": -math.inf, "Min": math.inf}
"""The number that changes no other: JAX's softmax has a maximum with it."""


def _passed_on(node: ir.Node) -> ir.Value | None:
    """The input that a node's first output equals, where it makes nothing else that is read."""
    source = node.inputs[0] if node.inputs else None
    if node.domain != "" or source is None or KEPT in node.metadata_props:
        return None
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return None
    if node.op_type == "Identity":
        return source
    if node.op_type == "Cast":
        same = source.dtype is not None and source.dtype.value == node.attributes.get_int("to", 0)
        return source if same and isinstance(source.type, ir.TensorType) else None
    if node.op_type == "Dropout":
        training = input_of(node, 2)
        off = constant_array(training) if training is not None else np.False_
        return source if off is not None and not bool(off) else None
    if node.op_type in _NEUTRAL and len(node.inputs) == 2:
        for value, other in (node.inputs, node.inputs[::-1]):
            bound = constant_array(other)
            if bound is not None and bound.ndim == 0 and bound.dtype.kind == "f" and bound == _NEUTRAL[node.op_type]:
                return value
    return None


def eliminate_identity(model: ir.Model) -> list[Note]:
    """Removes Identity, Dropout outside training, Casts to the type at hand, and Max with -inf or Min with inf.

    Graph outputs keep their names: where the node makes a graph output, its input takes over the output's name if it
    is itself neither an input, an output nor a constant of a graph, nor comes from an outer graph; else the node stays,
    and is passed by who reads its output within the graph.

    Args:
        model: changed in place.
    """
    removed = 0
    for graph in all_graphs(model):
        for node in list(graph):
            source = _passed_on(node)
            if source is None:
                continue
            last = node.outputs[0]
            if last.is_graph_output():
                producer = source.producer()
                if producer is None or producer.graph is not graph or source.is_graph_output():
                    replace_value(last, source)  # for those who read it in the graph
                    continue
                rename_output(source, last)
                # The node itself still reads its input, which by now bears the output's name.
                for index in range(len(node.inputs)):
                    node.replace_input_with(index, None)
            else:
                replace_value(last, source)
            remove_nodes([node])
            removed += 1
    return [Note("identity", "", f"{removed} nodes that change nothing removed")] if removed else []
