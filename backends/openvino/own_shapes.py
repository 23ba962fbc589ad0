"""Shapes that OpenVINO would read of another tensor than the model does."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["own_shapes"]


def own_shapes(model: ir.Model) -> list[Note]:
    """Put the largest of it and 0, which is itself, behind each free shape of a model with convolutions.

    OpenVINO reads a size that it knows to be that of another tensor there, often of the first convolution (the batch,
    by which a detector's anchors or a transformer's queries are repeated). Its bias then has to be added apart, becomes
    a part of the quantizer behind, and all channels are given that of the first one.

    Args:
        model: changed in place, of opset 12 or above, shapes known as far as they can be.

    Returns:
        One note with the number of shapes, if any.
    """
    nodes = list(all_nodes(model))
    if not any(node.op_type == "Conv" for node in nodes):
        return []
    namer, zero, count = Namer(model), None, 0
    for node in nodes:
        read = node.inputs[0] if node.op_type == "Shape" and node.domain == "" else None
        graph, shape = node.graph, node.outputs[0]
        if read is None or not isinstance(graph, ir.Graph) or (read.shape is not None and read.shape.is_static()):
            continue
        if not shape.uses():
            continue
        zero = zero or set_constant(model.graph, namer, "no_size", np.zeros(1, np.int64))
        largest = ir.node("Max", [shape, zero], name=namer.node(f"{node.name}_Max"))
        made = largest.outputs[0]
        made.name, made.type = namer.fresh(f"{shape.name}_own"), shape.type
        made.shape = shape.shape.copy() if shape.shape is not None else None
        shape.replace_all_uses_with(made)
        largest.replace_input_with(0, shape)
        graph.insert_after(node, [largest])
        count += 1
    return [Note("own_shapes", "", f"{count} shapes read where the model reads them")] if count else []
