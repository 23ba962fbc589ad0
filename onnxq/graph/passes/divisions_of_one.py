"""Reciprocals, as divisions of 1."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["divisions_of_one"]


def divisions_of_one(model: ir.Model) -> list[Note]:
    """Replace Reciprocal by Div, whose 1 may then have a grid of its own; no number changes.

    Args:
        model: changed in place; nodes and tensors keep their names.

    Returns:
        One note with the number of nodes, if any.
    """
    namer = Namer(model)
    count = 0
    for node in list(all_nodes(model)):
        data, graph = node.inputs[0] if node.inputs else None, node.graph
        if node.op_type != "Reciprocal" or node.domain != "" or data is None or data.dtype is None:
            continue
        if not isinstance(graph, ir.Graph):
            continue
        one = set_constant(graph, namer, f"{node.outputs[0].name}_one", np.ones((), data.dtype.numpy()))
        division = ir.node("Div", [one, data], name=node.name)
        stand_for(division, [node])
        replace_nodes([node], division)
        count += 1
    return [Note("divisions_of_one", "", f"{count} reciprocals divide 1")] if count else []
