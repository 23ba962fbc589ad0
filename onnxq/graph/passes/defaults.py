"""Initializers that are also graph inputs: constants in old files, defaults that a caller may override in new ones."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.layer import FLOATS
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["drop_initializer_inputs"]

_SEVERAL = 2
"""A single initializer may well be there to be overridden."""
_LAYERS = frozenset(
    {"BatchNormalization", "Conv", "ConvTranspose", "GRU", "Gemm", "GroupNormalization", "InstanceNormalization"}
    | {"LSTM", "LayerNormalization", "MatMul", "PRelu", "RNN"}
)
"""What has parameters."""
_DEFAULT = "onnxq.default"
"""Mark in ``ir.Value.meta`` of an input found to have a default: passes may leave no other initializers."""


def drop_initializer_inputs(model: ir.Model) -> list[Note]:
    """Takes initializers off the list of graph inputs where the file format forced them onto it.

    Before IR version 4 every initializer had to be listed as an input, so being listed says nothing: they become
    constants and the IR version is raised to 8. From version 4 on, an initializer that is listed is a default
    value on purpose: it stays an input, and so is not a constant. Where all of them are listed, and there are several,
    it is an exporter that still writes the old form (torch with ``keep_initializers_as_inputs``): constants again. So
    where several layers have parameters among them, and none has one that is not listed: what Brevitas exports has
    Constant nodes made initializers afterwards, its quantizers' operands.

    Args:
        model: changed in place.
    """
    graph = model.graph
    both = [value for value in graph.inputs if value.is_initializer()]
    whole = len(both) >= max(len(graph.initializers), _SEVERAL) or _of_all_layers(model)
    meant = not whole or any(_DEFAULT in value.meta for value in both)
    if model.ir_version >= 4 and meant:
        for value in both:
            value.meta[_DEFAULT] = True
        return [
            Note(
                "defaults",
                value.name or "",
                "an initializer that is also a graph input: callers may override it, so it is not a constant",
            )
            for value in both
        ]
    for value in both:
        graph.inputs.remove(value)
    raised = ""
    if model.ir_version < 4:
        raised, model.ir_version = f"IR version {model.ir_version} raised to 8; ", 8
    if not both:
        return []
    return [Note("defaults", "", f"{raised}{len(both)} initializers are no longer listed as inputs")]


def _of_all_layers(model: ir.Model) -> bool:
    """Whether several layers read parameters that are listed as inputs, and none reads others."""
    having = 0
    for node in all_nodes(model):
        if node.op_type not in _LAYERS or node.domain != "":
            continue
        held = [v for v in node.inputs if v is not None and v.is_initializer() and v.dtype in FLOATS]
        if not all(value.is_graph_input() for value in held):
            return False
        having += bool(held)
    return having >= _SEVERAL
