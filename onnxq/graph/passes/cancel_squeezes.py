"""A Squeeze and an Unsqueeze that undo each other are taken out: converters write both around every layer of theirs."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_value
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array

__all__ = ["cancel_squeezes", "squeezed_axes"]

_OTHER = {"Squeeze": "Unsqueeze", "Unsqueeze": "Squeeze"}


def cancel_squeezes(model: ir.Model) -> list[Note]:
    """Let what reads an Unsqueeze of a Squeeze of the same axes, or the other way round, read what both began with.

    Args:
        model: changed in place; constants must be folded and ranks known.

    Returns:
        A note of how many pairs there were, if any.
    """
    count = 0
    for graph in all_graphs(model):
        for node in list(graph):
            source = _undone(node)
            if source is None or node.outputs[0].is_graph_output():
                continue
            first = node.inputs[0]
            replace_value(node.outputs[0], source)
            remove_nodes([node])
            count += 1
            maker = first.producer() if first is not None else None
            if first is not None and maker is not None and not first.uses() and not first.is_graph_output():
                remove_nodes([maker])
    return [Note("cancel_squeezes", "", f"{count} pairs of Squeeze and Unsqueeze fewer")] if count else []


def _undone(node: ir.Node) -> ir.Value | None:
    """What a node gives back, where it undoes the one before it."""
    before = node.inputs[0].producer() if node.op_type in _OTHER and node.inputs[0] is not None else None
    if before is None or before.op_type != _OTHER[node.op_type] or before.graph is not node.graph:
        return None
    axes = squeezed_axes(node)
    return before.inputs[0] if axes is not None and axes == squeezed_axes(before) else None


def squeezed_axes(node: ir.Node) -> tuple[int, ...] | None:
    """The axes that a Squeeze takes away or an Unsqueeze adds, counted in the longer shape; None where not known."""
    wide = node.inputs[0] if node.op_type == "Squeeze" else node.outputs[0]
    if node.domain != "" or wide is None or wide.shape is None:
        return None
    given = constant_array(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints("axes", [])
    if given is None or len(given) == 0:
        return None
    return tuple(sorted(int(axis) % len(wide.shape) for axis in given))
