"""Batch normalizations that stand alone, as depthwise convolutions of one element."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.layer import Refusal
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.fold_batchnorm import batchnorm_affine
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import LEFT_ALONE, AnyArray, rank_of

__all__ = ["lone_norms"]

_RANKS = (3, 4)
"""Of a sequence and of pictures: each channel is multiplied and shifted alone."""


def lone_norms(model: ir.Model) -> list[Note]:
    """Write batch normalizations as convolutions with a group for each channel and a kernel of one element.

    They stand alone where they cannot fold into a layer: in front of an activation function, behind a sum or a Concat,
    as in DenseNet and in residual nets of the second kind. AMD Quark does the same (``ConvertBNToConv``).

    Args:
        model: changed in place, normalized; nodes and tensors keep their names, the numbers differ by float32 rounding.

    Returns:
        One note with the number of normalizations, if any.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        numbers, data = _numbers(node), node.inputs[0] if node.inputs else None
        if numbers is None or data is None or not isinstance(node.graph, ir.Graph):
            continue
        rank, (factor, shift) = len(data.shape or ()), numbers
        base = node.outputs[0].name or "norm"
        weight = set_constant(node.graph, namer, f"{base}_weight", factor.reshape(-1, *[1] * (rank - 1)))
        bias = set_constant(node.graph, namer, f"{base}_bias", shift)
        conv = ir.node("Conv", [data, weight, bias], {"group": len(factor)}, name=node.name)
        conv.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", [1] * (rank - 2))
        stand_for(conv, [node])
        replace_nodes([node], conv)
        count += 1
    return [Note("lone_norms", "", f"{count} batch normalizations alone are depthwise convolutions")] if count else []


def _numbers(node: ir.Node) -> tuple[AnyArray, AnyArray] | None:
    """Factor and shift, (C,) float32, of a batch normalization alone; None for all other nodes."""
    if node.op_type != "BatchNormalization" or node.domain != "" or node.meta.get(LEFT_ALONE):
        return None
    data = node.inputs[0]
    if data is None or rank_of(data) not in _RANKS or data.dtype is not ir.DataType.FLOAT:
        return None
    try:
        factor, shift = batchnorm_affine(node)
    except Refusal:
        return None
    with np.errstate(over="ignore"):
        made = factor.astype(np.float32), shift.astype(np.float32)
    return made if all(np.isfinite(array).all() for array in made) else None
