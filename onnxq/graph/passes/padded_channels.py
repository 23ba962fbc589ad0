"""Channels that a Pad adds, as a Concat with constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, static_shape

__all__ = ["padded_channels"]


def padded_channels(model: ir.Model) -> list[Note]:
    """Write each Pad that adds channels of a constant number, and nothing else, as a Concat.

    Args:
        model: changed in place, its shapes inferred. Left are tensors whose sizes are not known.

    Returns:
        One note with the number of nodes, if any.
    """
    namer = Namer(model)
    count = 0
    for node in [node for node in all_nodes(model) if node.op_type == "Pad" and node.domain == ""]:
        data, sizes, added = node.inputs[0], static_shape(node.inputs[0]), _added_channels(node)
        number = constant_array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros((), np.float32)
        if data is None or data.dtype is None or sizes is None or added is None or number is None:
            continue
        assert isinstance(node.graph, ir.Graph)
        parts = [data]
        for channels, at in zip(added, (0, len(parts) + 1), strict=True):
            if channels:
                more = np.full((sizes[0], channels, *sizes[2:]), number.reshape(()), data.dtype.numpy())
                parts.insert(at, set_constant(node.graph, namer, f"{node.name}_channels", more))
        concat = ir.node("Concat", parts, attributes={"axis": 1}, name=node.name)
        stand_for(concat, [node])
        replace_nodes([node], concat)
        count += 1
    return [Note("padded_channels", "", f"{count} Pad nodes of channels are a Concat")] if count else []


def _added_channels(node: ir.Node) -> tuple[int, int] | None:
    """How many channels a Pad of constants adds in front and behind; None where it changes anything else, or may."""
    sizes, pads = static_shape(node.inputs[0]) or (), constant_array(node.inputs[1])
    axes = constant_array(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else np.arange(len(sizes))
    if node.attributes.get_string("mode", "constant") != "constant" or pads is None or axes is None or len(sizes) < 2:
        return None
    whole = np.zeros((2, len(sizes)), np.int64)
    whole[:, axes] = pads.reshape(2, -1)
    front, behind = (int(side) for side in whole[:, 1])
    whole[:, 1] = 0
    return (front, behind) if min(front, behind) >= 0 and front + behind > 0 and not whole.any() else None
