"""Spectra of real signals, of which a DFT leaves out the half that mirrors the other, cut from whole ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.dft import dft_axis
from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of, integer, size_along

__all__ = ["whole_spectra"]


def whole_spectra(model: ir.Model) -> list[Note]:
    """Write each DFT that is ``onesided`` as one that is not, and a Slice of its first half and one.

    That changes no number: the rest of a real signal's spectrum is the mirror image. Left are inverse transforms, and
    those whose length or axis is not known.

    Args:
        model: changed in place. The node keeps its name, the Slice has its output.

    Returns:
        One note with the number of transforms, if any.
    """
    namer, opset = Namer(model), model.opset_imports.get("", 0)
    count = 0
    for node in list(all_nodes(model)):
        get, graph = node.attributes, node.graph
        if node.op_type != "DFT" or node.domain != "":
            continue
        if get.get_int("onesided", 0) == 0 or get.get_int("inverse", 0) == 1:
            continue
        axis = dft_axis(node, opset)
        length = None if axis is None else _length(node, axis)
        if axis is None or length is None or not isinstance(graph, ir.Graph):
            continue
        _cut(node, graph, namer, axis, length)
        count += 1
    return [Note("whole_spectra", "", f"{count} spectra are cut from whole ones")] if count else []


def _length(node: ir.Node, axis: int) -> int | None:
    """How many elements are transformed; None where that is not known."""
    given = input_of(node, 1)
    return size_along(node.inputs[0], axis) if given is None else integer(given)


def _cut(node: ir.Node, graph: ir.Graph, namer: Namer, axis: int, length: int) -> None:
    old = node.outputs[0]
    others = [a for a in node.attributes.values() if a.name != "onesided"]
    made = ir.node("DFT", node.inputs, {a.name: a for a in others}, name=node.name)
    spectrum = made.outputs[0]
    spectrum.name, spectrum.type = namer.fresh(f"{old.name}_whole"), old.type
    numbers = (("start", 0), ("end", length // 2 + 1), ("axis", axis))
    where = [set_constant(graph, namer, f"{old.name}_{what}", np.asarray([number])) for what, number in numbers]
    half = ir.node("Slice", [spectrum, *where], name=namer.node(f"{node.name}_Slice"))
    replace_nodes([node], made, half)
