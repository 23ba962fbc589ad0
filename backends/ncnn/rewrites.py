"""Float models as pnnx converts them rightly; no number changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant, rank_of, static_shape

__all__ = ["ONE_AXIS", "for_pnnx"]

ONE_AXIS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum")
"""Reductions of which pnnx does not see a single axis that is an input: what it makes of them reduces nothing."""
_MOST = 4
"""Dimensions of such a tensor at most: it gets another, and ncnn has five, the batch among them."""


def for_pnnx(model: ir.Model) -> list[Note]:
    """Write out what pnnx does not see.

    A reduction of one axis that is an input reduces another of one element as well, a LayerNormalization gets a bias of
    zeros, a Pad says its mode, and a Gather of rows of a constant does not say that they lie along the first axis: pnnx
    makes an Embed only of the one without an attribute.

    Args:
        model: changed in place, shapes inferred.
    """
    namer, reduced = Namer(model), 0
    for node in list(all_nodes(model)):
        if node.domain != "":
            continue
        if node.op_type == "Pad":
            node.attributes.setdefault("mode", ir.AttrString("mode", "constant"))
        elif node.op_type == "Gather" and is_constant(node.inputs[0]) and not is_constant(node.inputs[1]):
            if _is_first(node.attributes.get_int("axis", 0), node.inputs[0]):
                node.attributes.pop("axis", None)
        elif node.op_type == "LayerNormalization" and len(node.inputs) == 2:
            _add_bias(node, namer)
        elif node.op_type in ONE_AXIS and (axis := _one_axis(node)) is not None:
            _reduce_another(node, axis, namer)
            reduced += 1
    if not reduced:
        return []
    infer_shapes(model)
    what = f"{reduced} reductions of one axis reduce another of one element too: pnnx does not see a single one"
    return [Note("ncnn", "", what)]


def _is_first(axis: int, value: ir.Value | None) -> bool:
    rank = rank_of(value) or 0
    return axis in (0, -rank)


def _one_axis(node: ir.Node) -> int | None:
    """The axis, from the front, of a reduction of one that is an input and not the batch; None for all others."""
    data, found = node.inputs[0], constant_array(input_of(node, 1))
    if data is None or data.shape is None or found is None or found.size != 1 or len(data.shape) > _MOST:
        return None
    axis = int(found.reshape(-1)[0]) % len(data.shape)
    return axis if axis > 0 and isinstance(node.graph, ir.Graph) else None


def _reduce_another(node: ir.Node, axis: int, namer: Namer) -> None:
    """Let a reduction of one axis reduce a last one of one element as well."""
    data, graph, name = node.inputs[0], node.graph, node.outputs[0].name
    assert data is not None and data.shape is not None and isinstance(graph, ir.Graph)
    last = len(data.shape)

    def added(op: str, value: ir.Value, axes: list[int], **attributes: int) -> ir.Node:
        made = ir.node(op, [value, set_constant(graph, namer, f"{name}_axes", np.array(axes, np.int64))], attributes)
        made.name, made.outputs[0].name = namer.node(f"{node.name}_{op}"), namer.fresh(f"{name}_{op}")
        graph.insert_before(node, [made])
        return made

    wide = added("Unsqueeze", data, [last])
    made = added(node.op_type, wide.outputs[0], [axis, last], keepdims=0)
    stand_for(made, [node])
    keeps = node.attributes.get_int("keepdims", 1) == 1
    final = added("Unsqueeze", made.outputs[0], [axis]) if keeps else made
    made.name = node.name
    rename_output(final.outputs[0], node.outputs[0])
    remove_nodes([node])


def _add_bias(node: ir.Node, namer: Namer) -> None:
    """Give a LayerNormalization a bias of zeros, as its scale is shaped."""
    scale, graph = node.inputs[1], node.graph
    shape = static_shape(scale)
    if scale is None or scale.dtype is None or shape is None or not isinstance(graph, ir.Graph):
        return
    zeros = set_constant(graph, namer, f"{scale.name}_bias", np.zeros(shape, scale.dtype.numpy()))
    node.resize_inputs(3)
    node.replace_input_with(2, zeros)
