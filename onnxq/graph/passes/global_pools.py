"""Means over all positions of a picture written as the pool that they are."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.recognition.region import axes_of
from onnxq.graph.traverse import all_nodes

__all__ = ["global_pools"]

_RANKS = (4, 5)
"""Of fewer axes the last one is as often that of features, whose mean is taken by a normalization."""


def global_pools(model: ir.Model) -> list[Note]:
    """Replace ReduceMean over rows and columns (and depth) by GlobalAveragePool, and a Flatten where these axes go.

    torch's newer exporter writes its pools so, and most targets have integers for the pool alone. A mean that a
    normalization subtracts, or that is taken of squares, stays: the chain is recognized as a whole.

    Args:
        model: changed in place; ranks must be known.

    Returns:
        One note with the number of means, if any.
    """
    namer = Namer(model)
    found = [node for node in all_nodes(model) if _is_pool(node)]
    for node in found:
        _replace(node, namer)
    return [Note("global_pools", "", f"{len(found)} means over all positions are GlobalAveragePool")] if found else []


def _is_pool(node: ir.Node) -> bool:
    if node.op_type != "ReduceMean" or node.domain != "" or not isinstance(node.graph, ir.Graph):
        return False
    x, mean = node.inputs[0], node.outputs[0]
    if x is None or x.dtype is not ir.DataType.FLOAT or x.shape is None or len(x.shape) not in _RANKS:
        return False
    if {axis % len(x.shape) for axis in axes_of(node) or ()} != set(range(2, len(x.shape))):
        return False
    maker = x.producer()
    squares = maker is not None and (maker.op_type == "Pow" or (maker.op_type == "Mul" and _equal(maker)))
    return not squares and not any(use.node.op_type == "Sub" for use in mean.uses())


def _equal(node: ir.Node) -> bool:
    return node.inputs[0] is node.inputs[1]


def _replace(node: ir.Node, namer: Namer) -> None:
    x, old = node.inputs[0], node.outputs[0]
    assert x is not None and x.shape is not None
    pool = last = ir.node("GlobalAveragePool", [x], name=node.name)
    made = [pool]
    if not node.attributes.get_int("keepdims", 1):
        mean = pool.outputs[0]
        mean.name, mean.type = namer.fresh(f"{old.name}_pooled"), old.type
        mean.shape = ir.Shape([*list(x.shape)[:2], *[1] * (len(x.shape) - 2)])
        last = ir.node("Flatten", [mean], name=namer.node(f"{node.name}_Flatten"))
        made.append(last)
    for new in made:
        stand_for(new, [node])
    replace_nodes([node], *made)
