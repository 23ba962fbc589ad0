"""DepthToSpace behind an integer convolution: the phases that it makes are put side by side with channels last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.kernels import quantizer_behind
from onnxq.backends.onnxruntime.side_by_side import Writer, put_side_by_side, quantizer_alike
from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, only_reader, static_shape

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["conv_before", "write_shuffles"]

_ABSORBED = ("Clip", "Relu")


def conv_before(node: ir.Node) -> ir.Node | None:
    """The convolution, of constant weights, whose channels a DepthToSpace alone reads, behind a Relu or Clip or not.

    Args:
        node: the DepthToSpace, of a model with or without quantizers.
    """
    if node.op_type != "DepthToSpace" or node.domain != "" or node.inputs[0] is None:
        return None
    maker = _alone(node.inputs[0])
    while maker is not None and maker.op_type in ("DequantizeLinear", "QuantizeLinear", *_ABSORBED):
        maker = _alone(maker.inputs[0]) if maker.inputs[0] is not None else None
    if maker is None or maker.op_type != "Conv" or maker.domain != "" or maker.graph is not node.graph:
        return None
    ordered = node.attributes.get_string("mode", "DCR") == "DCR"
    if not ordered and maker.attributes.get_int("group", 1) != 1:
        return None
    return maker if all(_numbers(value) is not None for value in maker.inputs[1:] if value is not None) else None


def _alone(value: ir.Value) -> ir.Node | None:
    """What makes a tensor that has one reader."""
    return value.producer() if only_reader(value) is not None else None


def _numbers(value: ir.Value) -> AnyArray | None:
    """Those of a constant, behind a DequantizeLinear of its own or not."""
    unpack = value.producer()
    if unpack is None:
        return constant_array(value)
    own = unpack.op_type == "DequantizeLinear" and len(value.uses()) == 1 and "block_size" not in unpack.attributes
    return constant_array(unpack.inputs[0]) if own else None


def write_shuffles(model: ir.Model, plan: Plan) -> None:
    """Put the phases of each quantized DepthToSpace side by side, where a convolution makes them.

    Where the channels of a phase are not side by side (``mode="CRD"``), the convolution makes them in that order.

    Args:
        model: a rendered QDQ model, changed in place.
        plan: where it is quantized.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        conv = conv_before(node) if node.name in plan.quantized else None
        if conv is None or conv.name not in plan.quantized or quantizer_behind(conv) is None:
            continue
        if (quantizer := quantizer_alike(node)) is not None:
            _write(node, conv, quantizer, namer)


def _write(node: ir.Node, conv: ir.Node, quantizer: ir.Node, namer: Namer) -> None:
    between = [node]
    while between[-1].op_type not in _ABSORBED and between[-1] is not conv:
        before = between[-1].inputs[0]
        maker = before.producer() if before is not None else None
        assert maker is not None
        between.append(maker)
    value, made = between.pop().outputs[0], node.outputs[0]
    step, sizes = node.attributes.get_int("blocksize", 1), static_shape(conv.inputs[1])
    assert sizes is not None
    if node.attributes.get_string("mode", "DCR") == "CRD":
        order = np.arange(sizes[0]).reshape(-1, step, step).transpose(1, 2, 0).reshape(-1)
        _reorder(conv, order, namer)
        for tensor in {conv.outputs[0], value}:
            tensor.name = namer.fresh(f"{tensor.name}_phases")
    writer = Writer(quantizer, str(node.name), str(made.name), namer)
    rename_output(put_side_by_side(writer, value, step, quantizer, node.name), made)
    remove_nodes(between)


def _reorder(conv: ir.Node, order: AnyArray, namer: Namer) -> None:
    """Let a convolution make its channels in another order."""
    for index in range(1, len(conv.inputs)):
        value = conv.inputs[index]
        unpack = value.producer() if value is not None else None
        holder, indices = (conv, [index]) if unpack is None else (unpack, list(range(len(unpack.inputs))))
        for position in indices:
            given = holder.inputs[position]
            array = constant_array(given)
            if given is None or array is None or array.ndim == 0 or array.shape[0] != len(order):
                continue
            assert isinstance(holder.graph, ir.Graph)
            stored = set_constant(holder.graph, namer, f"{given.name}_phases", array[order])
            holder.replace_input_with(position, stored)
