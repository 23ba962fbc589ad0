"""Scalar indices of Gather behind integer operators, where OpenVINO would give back an axis that they take away."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.backends.openvino.integers import from_integers
from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import SAME_NUMBERS, constant_array, rank_of

__all__ = ["scalar_indices"]


def scalar_indices(model: ir.Model) -> list[Note]:
    """Write a Gather of a scalar index behind a multiply-accumulate as one of a vector of one index, and a Squeeze.

    OpenVINO moves the scales of weights behind the Gather, and leaves them the axis that a scalar index takes away: the
    result has it again, or the model is refused.

    Args:
        model: changed in place, of opset 13 or above, shapes known as far as they can be. The node keeps its name, its
            output too.

    Returns:
        One note with the number of nodes, if any.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        if node.op_type != "Gather" or node.domain != "" or not _from_integers(node.inputs[0]):
            continue
        index = node.inputs[1]
        if index is not None and rank_of(index) == 0:
            _widen(node, index, namer)
            count += 1
    return [Note("scalar_indices", "", f"{count} Gather read a vector of one index")] if count else []


def _from_integers(value: ir.Value | None) -> bool:
    """Whether a multiply-accumulate makes a tensor, or what is divided or negated to give it."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("Div", "Neg"):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return from_integers(value)


def _widen(node: ir.Node, index: ir.Value, namer: Namer) -> None:
    old, graph, axis = node.outputs[0], node.graph, node.attributes.get_int("axis", 0)
    assert isinstance(graph, ir.Graph)
    array, name = constant_array(index), f"{old.name}_index"
    made: list[ir.Node] = []
    if array is not None:
        vector = set_constant(graph, namer, name, array.reshape(1))
    else:
        axes = set_constant(graph, namer, f"{name}_axis", np.asarray([0]))
        made = [ir.node("Unsqueeze", [index, axes], name=namer.node(f"{node.name}_Unsqueeze"))]
        vector = made[0].outputs[0]
        vector.name, vector.type, vector.shape = namer.fresh(name), index.type, ir.Shape([1])
    gather = ir.node("Gather", [node.inputs[0], vector], {"axis": axis}, name=node.name)
    picked = gather.outputs[0]
    picked.name, picked.type = namer.fresh(f"{old.name}_picked"), old.type
    picked.meta[SAME_NUMBERS] = old.name
    if old.shape is not None:
        at = axis % (len(old.shape) + 1)
        picked.shape = ir.Shape([*old.shape[:at], 1, *old.shape[at:]])
    axes = set_constant(graph, namer, f"{old.name}_axis", np.asarray([axis]))
    squeeze = ir.node("Squeeze", [picked, axes], name=namer.node(f"{node.name}_Squeeze"))
    replace_nodes([node], *made, gather, squeeze)
