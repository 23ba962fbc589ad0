"""Mean pools that round their number of windows up, with the rows and columns that this takes as padding."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["plain_means", "rounds_up"]


def rounds_up(node: ir.Node) -> bool:
    """Whether a node is an AveragePool of which a window may reach beyond its padded input."""
    return node.op_type == "AveragePool" and node.domain == "" and _missing(node) != [0] * len(_kernel(node))


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
        kernel, missing = _kernel(node), _missing(node)
        pads = list(node.attributes.get_ints("pads", ()) or (0,) * 2 * len(kernel))
        ends = [pad + more for pad, more in zip(pads[len(kernel) :], missing or (), strict=False)]
        if missing is None or any(2 * end > window for end, window in zip(ends, kernel, strict=True)):
            continue  # few kernels are right, and tested, where padding is more than half a window
        node.attributes["pads"] = ir.AttrInt64s("pads", [*pads[: len(kernel)], *ends])
        del node.attributes["ceil_mode"]
        count += 1
    return [Note("plain_means", "", f"{count} AveragePool nodes are padded in place of rounding up")] if count else []


def _kernel(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("kernel_shape", ()))


def _missing(node: ir.Node) -> list[int] | None:
    """By axis, what the last window lacks at the end of the padded input; ``None`` where sizes are not known."""
    get, x, kernel = node.attributes, node.inputs[0], _kernel(node)
    if not get.get_int("ceil_mode", 0) or get.get_string("auto_pad", "NOTSET") != "NOTSET":
        return [0] * len(kernel)
    sizes = x.shape[2:] if x is not None and x.shape is not None else ()
    strides = get.get_ints("strides", ()) or (1,) * len(kernel)
    dilations = get.get_ints("dilations", ()) or (1,) * len(kernel)
    pads = get.get_ints("pads", ()) or (0,) * 2 * len(kernel)
    if all(step == 1 for step in strides):
        return [0] * len(kernel)
    if len(sizes) != len(kernel):
        return None
    found = []
    for axis, (size, window, step, gap) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if not isinstance(size, int):
            return None
        reach = size + pads[axis] + pads[len(kernel) + axis] - ((window - 1) * gap + 1)
        found.append(-reach % step)
    return found
