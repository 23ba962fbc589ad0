"""Convolutions of kernel 1 with strides, with a MaxPool of kernel 1 in front that takes the elements they read."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import SAME_NUMBERS, is_constant, static_shape

__all__ = ["picks_elements", "strides_in_front"]

_MULTIPLY = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def picks_elements(node: ir.Node) -> bool:
    """Whether a node is a MaxPool that only leaves elements out: of kernel 1, with strides."""
    if node.op_type != "MaxPool" or node.domain != "":
        return False
    strides = node.attributes.get_ints("strides", ())
    return math.prod(node.attributes.get_ints("kernel_shape", ())) == 1 and any(step > 1 for step in strides)


def strides_in_front(model: ir.Model) -> list[Note]:
    """Give tensors that convolutions of kernel 1 alone multiply, all with the same strides, a MaxPool with these.

    The convolutions then read every element, the numbers are the same. Where they pad, a Pad stands in front. Where
    branches read a tensor, each has its own. Left are tensors that other convolutions or matrix products read, whose
    quantizer they share, and convolutions with groups.

    Args:
        model: changed in place, shapes inferred. Its tensors keep their names and numbers.

    Returns:
        One note with the number of convolutions, if any.
    """
    namer = Namer(model)
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in all_nodes(model):
        if _strides(node) is not None and node.inputs[0] is not None:
            found.setdefault(node.inputs[0], []).append(node)
    count = 0
    for value, readers in found.items():
        others = {use.node.op_type for use in value.uses() if use.node not in readers}
        if not others.isdisjoint(_MULTIPLY) or len({_strides(node) for node in readers}) > 1:
            continue
        picked: dict[tuple[object, ...], ir.Value] = {}
        for node in readers:
            pads = _pads(node)
            key = (node.graph, pads)
            if key not in picked:
                picked[key] = _pick(_padded(value, pads, node, namer), node, namer)
                picked[key].meta[SAME_NUMBERS] = value.name
            node.replace_input_with(0, picked[key])
            for name in ("strides", "pads", "auto_pad"):
                node.attributes.pop(name, None)
        count += len(readers)
    if count:
        infer_shapes(model)
    return [Note("strides_in_front", "", f"{count} convolutions read every element")] if count else []


def _strides(node: ir.Node) -> tuple[int, ...] | None:
    """The strides of a convolution of kernel 1 that leaves elements of its input out."""
    if node.op_type != "Conv" or node.domain != "" or node.attributes.get_int("group", 1) != 1:
        return None
    x, weight = node.inputs[0], static_shape(node.inputs[1])
    if x is None or is_constant(x) or weight is None or any(size != 1 for size in weight[2:]):
        return None
    strides = tuple(node.attributes.get_ints("strides", ()))
    return strides if any(step > 1 for step in strides) else None


def _pads(node: ir.Node) -> tuple[int, ...]:
    """Padding at the beginning of each spatial axis, then at the end; automatic padding of kernel 1 is none."""
    pads = tuple(node.attributes.get_ints("pads", ()))
    return pads if any(pads) and node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET" else ()


def _padded(value: ir.Value, pads: tuple[int, ...], reader: ir.Node, namer: Namer) -> ir.Value:
    """A tensor with zeros around it, or itself where there is no padding."""
    if not pads:
        return value
    graph, axes = reader.graph, len(pads) // 2
    assert isinstance(graph, ir.Graph)
    before, after = (0, 0, *pads[:axes]), (0, 0, *pads[axes:])
    amounts = set_constant(graph, namer, f"{value.name}_pads", np.asarray([*before, *after], np.int64))
    node = ir.node("Pad", [value, amounts], name=namer.node(f"{value.name}_Pad"))
    return _made(node, f"{value.name}_padded", reader, namer)


def _pick(value: ir.Value, reader: ir.Node, namer: Namer) -> ir.Value:
    """The elements of a tensor that a convolution of kernel 1 reads."""
    strides = _strides(reader)
    assert strides is not None
    attributes = {"kernel_shape": [1] * len(strides), "strides": list(strides)}
    node = ir.node("MaxPool", [value], attributes, name=namer.node(f"{value.name}_MaxPool"))
    return _made(node, f"{value.name}_strided", reader, namer)


def _made(node: ir.Node, name: str, reader: ir.Node, namer: Namer) -> ir.Value:
    """The output of a new node in front of another; its spatial sizes are left to inference."""
    value, graph, made = node.inputs[0], reader.graph, node.outputs[0]
    assert value is not None and isinstance(graph, ir.Graph)
    made.name, made.type = namer.fresh(name), value.type
    if value.shape is not None:
        made.shape = ir.Shape([*value.shape[:2], *[None] * (len(value.shape) - 2)])
    graph.insert_before(reader, [node])
    return made
