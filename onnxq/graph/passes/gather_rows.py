"""A GatherND of whole rows is a Gather, which targets quantize: torch's exporter writes ``table[indices]`` so."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_nodes
from onnxq.graph.note import Note
from onnxq.graph.passes.cancel_squeezes import squeezed_axes
from onnxq.graph.traverse import all_graphs

__all__ = ["gather_rows"]


def gather_rows(model: ir.Model) -> list[Note]:
    """Write a GatherND whose indices have one number each, put there by an Unsqueeze, as a Gather along the first axis.

    Both count negative indices from the end.

    Args:
        model: changed in place; ranks must be known.

    Returns:
        A note of how many there were, if any.
    """
    count = 0
    for graph in all_graphs(model):
        for node in list(graph):
            unsqueeze = _unsqueeze(node)
            if unsqueeze is None:
                continue
            gather = ir.node("Gather", [node.inputs[0], unsqueeze.inputs[0]], name=node.name)
            replace_nodes([node], gather)
            if not unsqueeze.outputs[0].uses() and not unsqueeze.outputs[0].is_graph_output():
                remove_nodes([unsqueeze])
            count += 1
    return [Note("gather_rows", "", f"{count} GatherND that pick whole rows written as Gather")] if count else []


def _unsqueeze(node: ir.Node) -> ir.Node | None:
    """The Unsqueeze that makes a node's indices tuples of one number, where it is a GatherND of such."""
    if node.op_type != "GatherND" or node.domain != "" or node.attributes.get_int("batch_dims", 0) != 0:
        return None
    indices = node.inputs[1]
    maker = indices.producer() if indices is not None else None
    if indices is None or maker is None or maker.op_type != "Unsqueeze" or indices.shape is None:
        return None
    return maker if squeezed_axes(maker) == (len(indices.shape) - 1,) else None
