"""Constant indices that count from the end, as indices that count from the start."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["counts_from_the_end", "positive_indices"]


def counts_from_the_end(node: ir.Node) -> bool:
    """Whether a node is a Gather or GatherElements with a constant negative index."""
    if node.op_type not in ("Gather", "GatherElements") or node.domain != "":
        return False
    indices = constant_array(node.inputs[1])
    return indices is not None and bool((indices < 0).any())


def positive_indices(model: ir.Model) -> list[Note]:
    """Add the size of the axis to constant negative indices of Gather and GatherElements, where it is known.

    Args:
        model: changed in place.

    Returns:
        One note with the number of nodes, if any.
    """
    namer = Namer(model)
    count = 0
    for node in all_nodes(model):
        data, indices = (*node.inputs, None, None)[:2]
        if not counts_from_the_end(node) or data is None or data.shape is None or indices is None:
            continue
        size = data.shape[node.attributes.get_int("axis", 0)]
        array, graph = constant_array(indices), node.graph
        if isinstance(size, int) and array is not None and isinstance(graph, ir.Graph):
            positive = np.where(array < 0, array + size, array).astype(array.dtype)
            node.replace_input_with(1, set_constant(graph, namer, f"{indices.name}_positive", positive))
            count += 1
    return [Note("positive_indices", "", f"{count} nodes count indices from the start")] if count else []
