"""Transposed convolutions that name their output's size, or none of their padding, with the padding that this takes."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import static_shape

__all__ = ["explicit_pads"]

_SETTLED = ("NOTSET", "VALID")


def explicit_pads(model: ir.Model) -> list[Note]:
    """Give every ConvTranspose with ``output_shape`` or ``auto_pad`` ``pads`` and ``output_padding`` in their place.

    That changes no number. Left are those of free sizes.

    Args:
        model: changed in place, shapes inferred.

    Returns:
        One note with their number, if any.
    """
    count = 0
    for node in all_nodes(model):
        if node.op_type != "ConvTranspose" or node.domain not in ("", "ai.onnx"):
            continue
        automatic = node.attributes.get_string("auto_pad", "NOTSET")
        if automatic in _SETTLED and not node.attributes.get_ints("output_shape", ()):
            continue
        found = _padding(node, begins_small=automatic == "SAME_UPPER")
        if found is None:
            continue
        pads, more = found
        for name in ("auto_pad", "output_shape", "output_padding"):
            node.attributes.pop(name, None)
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
        if any(more):
            node.attributes["output_padding"] = ir.AttrInt64s("output_padding", more)
        count += 1
    return [Note("explicit_pads", "", f"{count} ConvTranspose nodes have explicit padding")] if count else []


def _padding(node: ir.Node, *, begins_small: bool) -> tuple[list[int], list[int]] | None:
    """``pads`` and ``output_padding`` for the size that the output has, as onnxruntime shares them out."""
    before, weight = static_shape(node.inputs[0]), static_shape(node.inputs[1])
    if before is None or weight is None:
        return None
    get, rank = node.attributes, len(before) - 2
    steps, gaps = (get.get_ints(name, ()) or (1,) * rank for name in ("strides", "dilations"))
    given = get.get_ints("output_padding", ()) or (0,) * rank
    scaled = [size * step for size, step in zip(before[2:], steps, strict=True)]
    named = get.get_ints("output_shape", ())
    after = (named or scaled)[-rank:]
    begins, ends, more = [], [], []
    for axis in range(rank):
        window = (weight[2 + axis] - 1) * gaps[axis] + 1
        spare = steps[axis] * (before[2 + axis] - 1) + window + given[axis] - after[axis]
        half = spare // 2 if spare > 0 else 0
        both = (half, max(spare, 0) - half)
        begins.append(min(both) if begins_small else max(both))
        ends.append(max(both) if begins_small else min(both))
        more.append(given[axis] + (max(-spare, 0) if named else 0))  # what is not named stays as small as it is
    return [*begins, *ends], more
