"""Max and Min with one number behind a layer become Clip, or Relu: TensorFlow's ``maximum`` bounds activations so.

Targets compute Clip and Relu together with the layer, and a Max in float. Exact.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, rank_of

__all__ = ["clip_bounds"]

_BEHIND = frozenset(
    {"BatchNormalization", "Clip", "Conv", "ConvTranspose", "Gemm", "LeakyRelu", "MatMul", "PRelu", "Relu"}
)
"""Elsewhere such a Max belongs to something else: it keeps a norm off zero, say."""
_CLIP_OPSET = 11
"""Its bounds are inputs from there on."""


def clip_bounds(model: ir.Model) -> list[Note]:
    """Replace ``Max(x, c)`` by ``Clip(x, min=c)``, or by ``Relu(x)`` for 0, and ``Min(x, c)`` by ``Clip(x, max=c)``.

    Args:
        model: changed in place; constants must be folded and shapes known. ``x`` is float32, and what a layer or its
            activation function gives; ``c`` is one finite number.

    Returns:
        One note with the number of nodes replaced, if any.
    """
    if model.opset_imports.get("", 0) < _CLIP_OPSET:
        return []
    namer = Namer(model)
    done = sum(_replace(node, namer) for node in list(all_nodes(model)))
    return [Note("clip_bounds", "", f"{done} Max and Min with a number made Clip or Relu")] if done else []


def _replace(node: ir.Node, namer: Namer) -> bool:
    if node.domain != "" or node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return False
    for source, other in (node.inputs, node.inputs[::-1]):
        bound = constant_array(other)
        if source is None or bound is None or bound.size != 1 or not math.isfinite(bound.item()):
            continue
        maker, rank = source.producer(), rank_of(source)
        if maker is None or maker.op_type not in _BEHIND or maker.domain != "" or source.dtype is not ir.DataType.FLOAT:
            continue
        if rank is None or bound.ndim > rank or not isinstance(node.graph, ir.Graph):
            continue
        if node.op_type == "Max" and bound.item() == 0:
            made = ir.node("Relu", [source], name=node.name)
        else:
            limit = set_constant(node.graph, namer, f"{node.name}_bound", np.float32(bound.item()).reshape(()))
            made = ir.node("Clip", [source, limit] if node.op_type == "Max" else [source, None, limit], name=node.name)
        stand_for(made, [node])
        replace_nodes([node], made)
        return True
    return False
