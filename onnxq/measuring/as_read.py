"""What the readers of a tensor compute with in a model that carries quantizers."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxq.graph.shown import show

__all__ = ["as_read", "show_as_read"]


def as_read(value: ir.Value) -> ir.Value:
    """What a quantizer behind a float tensor gives back, or the tensor itself where none reads it."""
    found = value
    for use in value.uses():
        if use.idx == 0 and (shown := _given_back(use.node)) is not None:
            found = shown
    return found


def show_as_read(model: ir.Model, names: Collection[str]) -> None:
    """Make tensors of the main graph outputs as well, as their readers see them.

    Args:
        model: changed in place: where a quantizer reads a tensor, what it gives back takes over the tensor's name.
        names: of the tensors.
    """
    wanted = set(names)
    for value in [value for node in model.graph for value in node.outputs if value.name in wanted]:
        read = as_read(value)
        if read is not value and not value.is_graph_output():
            value.name, read.name = read.name, value.name
    show(model, names)


def _given_back(node: ir.Node) -> ir.Value | None:
    """The float tensor behind a quantizer node, None if the node is no quantizer."""
    if node.op_type in ("FakeQuantize", "NNIEQuantize"):
        return node.outputs[0]
    if node.op_type == "QuantizeLinear":
        for use in node.outputs[0].uses():
            if use.idx == 0 and use.node.op_type == "DequantizeLinear":
                return use.node.outputs[0]
    return None
