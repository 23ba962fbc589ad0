"""Masks that are put in the place of scores in front of a Softmax, added to them instead."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.constants import fold_constants
from onnxq.graph.recognition.masks import LEAST
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["added_masks"]


def added_masks(model: ir.Model) -> list[Note]:
    """Write ``Softmax(Where(condition, scores, mask))`` as ``Softmax(scores + Where(condition, 0, mask))``.

    A masked number is 0 behind the Softmax either way; rows that are masked as a whole may come out as others. Which
    branch holds the mask does not matter, only that it is constant, and below -1000 throughout.

    Args:
        model: changed in place, shapes inferred. Nodes and tensors keep their names.

    Returns:
        A note with the number of masks, if any, and what became of their constants.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        place, graph = _place_of_mask(node), node.graph
        if place is None or not isinstance(graph, ir.Graph):
            continue
        condition, scores = node.inputs[0], node.inputs[3 - place]
        old = node.outputs[0]
        branches = [node.inputs[1], node.inputs[2]]
        branches[2 - place] = set_constant(graph, namer, f"{old.name}_zero", np.zeros((), np.float32))
        mask = ir.node("Where", [condition, *branches], name=namer.node(f"{node.name}_mask"))
        mask.outputs[0].name, mask.outputs[0].type = namer.fresh(f"{old.name}_mask"), old.type
        added = ir.node("Add", [scores, mask.outputs[0]], name=node.name)
        added.outputs[0].type, added.outputs[0].shape = old.type, old.shape
        stand_for(added, [node])
        replace_nodes([node], mask, added)
        count += 1
    return [Note("added_masks", "", f"{count} masks are added"), *fold_constants(model)] if count else []


def _place_of_mask(node: ir.Node) -> int | None:
    """The position of the mask of a Where that a Softmax alone reads."""
    if node.op_type != "Where" or node.domain != "" or node.outputs[0].is_graph_output():
        return None
    readers = {use.node.op_type for use in node.outputs[0].uses()}
    if readers != {"Softmax"} or node.outputs[0].dtype is not ir.DataType.FLOAT:
        return None
    for place in (1, 2):
        mask, other = constant_array(node.inputs[place]), constant_array(node.inputs[3 - place])
        if mask is not None and mask.size and other is None and bool((mask <= -LEAST).all()):
            return place
    return None
