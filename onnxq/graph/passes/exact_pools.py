"""Pools that round their number of windows up, in the form without: the one that all tools read alike."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.windows import axes_of

__all__ = ["exact_pools"]

_POOLS = ("AveragePool", "LpPool", "MaxPool")


def exact_pools(model: ir.Model) -> list[Note]:
    """Take ``ceil_mode`` from the first pool where a window more would begin behind the input.

    Such a window counts for nothing in the operators' definitions and in onnxruntime, while onnx's shape inference
    counts it below opset 22, and then refuses the right shapes of what follows. So shapes behind the pool must be
    inferred again before the next one is looked at. The pads at the end are cut instead where windows along another
    axis are rounded up.

    Args:
        model: changed in place. Sizes are looked at where they are known.

    Returns:
        A note with the pool, if there is one.
    """
    for node in all_nodes(model):
        if node.op_type in _POOLS and node.domain == "" and _settle(node):
            return [Note("exact_pools", node.name or node.op_type, "no windows beyond its input")]
    return []


def _settle(node: ir.Node) -> bool:
    """Whether a pool was changed."""
    axes = axes_of(node) if node.attributes.get_int("ceil_mode", 0) else None
    if axes is None or any(axis.reach < 0 for axis in axes):
        return False
    behind = rounded = False
    ends = []
    for axis in axes:
        left = axis.reach % axis.step
        if left and (axis.reach // axis.step + 1) * axis.step < axis.size + axis.begin:
            rounded, left = True, 0
        behind |= left > 0
        ends.append(axis.end - left)
    if not behind or (rounded and min(*ends, *(axis.begin for axis in axes)) < 0):
        return False
    if rounded:
        node.attributes["pads"] = ir.AttrInt64s("pads", [*(axis.begin for axis in axes), *ends])
    else:
        del node.attributes["ceil_mode"]
    return True
