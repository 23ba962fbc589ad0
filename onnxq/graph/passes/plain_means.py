"""Mean pools that round their number of windows up, with the rows and columns that this takes as padding."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.windows import axes_of

__all__ = ["plain_means", "rounds_up"]


def rounds_up(node: ir.Node) -> bool:
    """Whether a node is an AveragePool of which a window may reach beyond its padded input."""
    if node.op_type != "AveragePool" or node.domain != "" or not node.attributes.get_int("ceil_mode", 0):
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    if all(step == 1 for step in node.attributes.get_ints("strides", ())):
        return False
    axes = axes_of(node)
    return axes is None or any(axis.reach % axis.step for axis in axes)


def plain_means(model: ir.Model) -> list[Note]:
    """Pad an AveragePool at the end by what its last windows reach beyond it, and take ``ceil_mode`` from it.

    That changes no number where padding is not counted. Others are left, those of free sizes, and those that would have
    more than half a window of padding.

    Args:
        model: changed in place.

    Returns:
        One note with the number of pools, if any.
    """
    count = 0
    for node in all_nodes(model):
        if not rounds_up(node) or node.attributes.get_int("count_include_pad", 0) != 0:
            continue
        axes = axes_of(node) or ()
        ends = [axis.end + -axis.reach % axis.step for axis in axes]
        if not ends or any(2 * end > axis.window for end, axis in zip(ends, axes, strict=True)):
            continue  # few kernels are right, and tested, where padding is more than half a window
        node.attributes["pads"] = ir.AttrInt64s("pads", [*(axis.begin for axis in axes), *ends])
        del node.attributes["ceil_mode"]
        count += 1
    return [Note("plain_means", "", f"{count} AveragePool nodes are padded in place of rounding up")] if count else []
