"""Pools that round their number of windows up, in the form without: the one that all tools read alike."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

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
            return [Note("exact_pools", node.name or node.op_type, "no windows behind its input")]
    return []


def _settle(node: ir.Node) -> bool:
    """Whether a pool was changed."""
    get, x = node.attributes, node.inputs[0]
    kernel = get.get_ints("kernel_shape", ())
    count = len(kernel)
    sizes = x.shape[2:] if x is not None and x.shape is not None else ()
    if not get.get_int("ceil_mode", 0) or len(sizes) != count or get.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    strides = get.get_ints("strides", ()) or (1,) * count
    dilations = get.get_ints("dilations", ()) or (1,) * count
    pads = list(get.get_ints("pads", ()) or (0,) * 2 * count)
    behind = rounded = False
    for axis, (size, window, step, gap) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if not isinstance(size, int):
            return False
        reach = size + pads[axis] + pads[count + axis] - ((window - 1) * gap + 1)
        if reach < 0:
            return False
        if reach % step == 0:
            continue
        if (reach // step + 1) * step < size + pads[axis]:
            rounded = True
            continue
        behind = True
        pads[count + axis] -= reach % step
    if not behind or (rounded and min(pads) < 0):
        return False
    if rounded:
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    else:
        del node.attributes["ceil_mode"]
    return True
