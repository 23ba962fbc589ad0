"""Spectra along another axis than the second, which OpenVINO takes along the second all the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.dft import AXIS_AS_INPUT, dft_axis
from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of

__all__ = ["spectra_along_the_second"]


def spectra_along_the_second(model: ir.Model) -> list[Note]:
    """Let each DFT transform along the second axis, between two Transposes; before opset 20, count its axis from 0.

    OpenVINO 2026.4 reads nothing of an axis that is an input. No number changes. Left are those of two axes, and of an
    axis that is computed.

    Args:
        model: changed in place, ranks known as far as they can be. The node keeps its name, its output too.

    Returns:
        One note with the number of transforms, if any.
    """
    namer, count, opset = Namer(model), 0, model.opset_imports.get("", 0)
    as_input = opset >= AXIS_AS_INPUT
    for node in list(all_nodes(model)):
        data = node.inputs[0] if node.op_type == "DFT" and node.domain == "" else None
        if data is None or data.shape is None or len(data.shape) < 3 or not isinstance(node.graph, ir.Graph):
            continue
        axis = dft_axis(node, opset)
        if axis is None:
            continue
        if as_input and axis % len(data.shape) != 1:
            _turn(node, node.graph, axis % len(data.shape), namer)
            count += 1
        elif not as_input and axis < 0:
            node.attributes["axis"] = ir.AttrInt64("axis", axis % len(data.shape))
            count += 1
    return [Note("second_axis", "", f"{count} spectra are taken along the axis that is asked")] if count else []


def _turn(node: ir.Node, graph: ir.Graph, axis: int, namer: Namer) -> None:
    data, old = node.inputs[0], node.outputs[0]
    assert data is not None and data.shape is not None
    swapped = list(range(len(data.shape)))
    swapped[1], swapped[axis] = axis, 1
    first = ir.node("Transpose", [data], {"perm": swapped}, name=namer.node(f"{node.name}_there"))
    turned = first.outputs[0]
    turned.name, turned.type = namer.fresh(f"{old.name}_turned"), data.type
    turned.shape = ir.Shape([data.shape[i] for i in swapped])
    second = set_constant(graph, namer, f"{old.name}_axis", np.asarray(1))
    length = input_of(node, 1)
    made = ir.node("DFT", [turned, length, second], dict(node.attributes), name=node.name)
    spectrum = made.outputs[0]
    spectrum.name, spectrum.type = namer.fresh(f"{old.name}_spectrum"), old.type
    if old.shape is not None:
        spectrum.shape = ir.Shape([old.shape[i] for i in swapped])
    last = ir.node("Transpose", [spectrum], {"perm": swapped}, name=namer.node(f"{node.name}_back"))
    replace_nodes([node], first, made, last)
