"""Biases that several convolutions read, as heads that run on every level of a pyramid share one."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["own_biases"]

_BIAS = 2
"""Position of the bias of a convolution."""


def own_biases(model: ir.Model) -> list[Note]:
    """Give each convolution a bias that no other reads.

    Args:
        model: changed in place. The first reader of a bias keeps it, with its name.

    Returns:
        One note with the number of copies made, if any.
    """
    namer, seen, copies = Namer(model), set[ir.Value](), 0
    for node in all_nodes(model):
        if node.op_type not in ("Conv", "ConvTranspose") or node.domain != "" or len(node.inputs) <= _BIAS:
            continue
        bias, array = node.inputs[_BIAS], constant_array(node.inputs[_BIAS])
        if bias is None or array is None or not isinstance(node.graph, ir.Graph):
            continue
        if bias in seen:
            node.replace_input_with(_BIAS, set_constant(node.graph, namer, bias.name or "bias", array))
            copies += 1
        seen.add(bias)
    return [Note("own_biases", "", f"{copies} biases that several convolutions read copied")] if copies else []
