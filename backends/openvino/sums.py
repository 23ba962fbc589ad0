"""Pools, means and sums, some of which OpenVINO computes wrongly in integers."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.openvino.integers import MATRICES, MOVES, from_integers, makers
from onnxq.graph.recognition.region import axes_of
from onnxq.graph.values import is_constant, rank_of

__all__ = ["summed_wrongly", "why_not_pooled"]

_SUMS = ("GlobalAveragePool", "ReduceMean", "ReduceSum")
_SCALED = ("Add", "Div", "Mul", "Neg", "Sub")


def why_not_pooled(node: ir.Node) -> str | None:
    """One behind a multiply-accumulate, whose kernel can then write integers; not over the second of three axes."""
    if not from_integers(node.inputs[0]):
        return "no operator before it runs in integers"
    if _sums_wrongly(node):
        return "OpenVINO sums integers over the second of three axes wrongly, but for the first sample"
    return None


def _sums_wrongly(node: ir.Node) -> bool:
    """Whether OpenVINO may sum over the second of three axes and not over the first, which is not of size 1.

    It moves a Transpose, and what adds or takes away axes, behind the sum: only without them are the axes known.
    """
    read = node.inputs[0]
    if node.op_type not in _SUMS or read is None:
        return False
    moves = [maker for maker in makers(read) if maker.op_type in MOVES]
    shapes = [read.shape, *(move.inputs[0].shape for move in moves if move.inputs[0] is not None)]
    if all(shape is not None and (len(shape) != MATRICES or shape[0] == 1) for shape in shapes):
        return False
    axes = axes_of(node)
    turned = any(move.op_type == "Transpose" for move in moves)
    if turned or axes is None or rank_of(read) != MATRICES:
        return axes != ()
    over = {axis % MATRICES for axis in axes}
    return 1 in over and 0 not in over


def summed_wrongly(value: ir.Value | None) -> str | None:
    """Why a tensor has no integers: with them, a sum that reads it would be computed in integers too, and wrongly.

    Args:
        value: read by the sum, or what is moved or scaled by constants in between.
    """
    pending = [value] if value is not None and from_integers(value) else []
    for current in pending:
        for use in current.uses():
            node = use.node
            if _sums_wrongly(node):
                return f"OpenVINO would compute '{node.name}' in integers, and wrongly"
            scaled = node.op_type in _SCALED and all(v is None or v is current or is_constant(v) for v in node.inputs)
            if scaled or (node.op_type in MOVES and use.idx == 0):
                pending += node.outputs
    return None
