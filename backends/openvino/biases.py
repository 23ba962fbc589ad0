"""Biases of zeros, where OpenVINO would apply the scale of a convolution more than once, or refuse the model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.backends.openvino.multiplied import scaled_twice
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of

__all__ = ["zero_biases"]


def zero_biases(model: ir.Model) -> list[Note]:
    """Give a convolution whose scale would be applied for each of several readers a bias of zeros, if it has none.

    OpenVINO multiplies by the scale of data and weights behind an integer convolution, in front of each operator that
    reads it, and then makes each of these products a part of the convolution, which all of them read. A bias is added
    in between, and then there is one product. Where sizes are known it makes other kernels of the readers.

    Where a Gather by a matrix of indices (what torch exports Unfold to) picks along rows or columns, all convolutions
    are given one: behind one without, activations and pools in between or not, OpenVINO refuses the model.

    Args:
        model: changed in place, shapes known as far as they can be.

    Returns:
        One note with the number of biases, if any.
    """
    namer, count = Namer(model), 0
    unfolds = any(_unfolds(node) for node in all_nodes(model))
    for node in all_nodes(model):
        if node.op_type != "Conv" or node.domain != "" or input_of(node, 2) is not None:
            continue
        output, weight = node.outputs[0], constant_array(node.inputs[1])
        if weight is None or not (unfolds or scaled_twice(output)):
            continue
        if isinstance(node.graph, ir.Graph):
            zeros = np.zeros(weight.shape[0], weight.dtype)
            node.resize_inputs(3)
            node.replace_input_with(2, set_constant(node.graph, namer, f"{node.name}_bias", zeros))
            count += 1
    return [Note("zero_biases", "", f"{count} convolutions given a bias of zeros")] if count else []


def _unfolds(node: ir.Node) -> bool:
    """Whether a node picks along rows or columns by a matrix of indices."""
    if node.op_type != "Gather" or node.domain != "":
        return False
    (data, indices), axis = node.inputs, node.attributes.get_int("axis", 0)
    if data is None or indices is None or data.shape is None or indices.shape is None:
        return False
    return len(indices.shape) > 1 and axis % len(data.shape) > 1
