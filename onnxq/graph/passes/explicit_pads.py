"""Transposed convolutions that name their output's size, or none of their padding, with the padding that this takes."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["explicit_pads"]

_SETTLED = ("NOTSET", "VALID")


def explicit_pads(model: ir.Model) -> list[Note]:
    """Give every ConvTranspose with ``output_shape`` or ``auto_pad`` ``pads`` and ``output_padding`` in their place.

    That changes no number. Left are those whose axes have free sizes; the batch may.

    Args:
        model: changed in place, shapes inferred.

    Returns:
        One note with their number, if any.
    """
    count = 0
    for node in all_nodes(model):
        if node.op_type != "ConvTranspose" or node.domain != "":
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
    before, weight = _sizes(node.inputs[0]), _sizes(node.inputs[1])
    if before is None or weight is None:
        return None
    get, rank = node.attributes, len(before)
    steps, gaps = (get.get_ints(name, ()) or (1,) * rank for name in ("strides", "dilations"))
    given = get.get_ints("output_padding", ()) or (0,) * rank
    scaled = [size * step for size, step in zip(before, steps, strict=True)]
    named = get.get_ints("output_shape", ())
    after = (named or scaled)[-rank:]
    begins, ends, more = [], [], []
    for axis in range(rank):
        window = (weight[axis] - 1) * gaps[axis] + 1
        spare = steps[axis] * (before[axis] - 1) + window + given[axis] - after[axis]
        half = spare // 2 if spare > 0 else 0
        both = (half, max(spare, 0) - half)
        begins.append(min(both) if begins_small else max(both))
        ends.append(max(both) if begins_small else min(both))
        more.append(given[axis] + (max(-spare, 0) if named else 0))  # what is not named stays as small as it is
    return [*begins, *ends], more


def _sizes(value: ir.Value | None) -> list[int] | None:
    """The sizes of a tensor behind its first two axes; None where one is free."""
    shape = value.shape if value is not None else None
    sizes = [size for size in shape[2:] if isinstance(size, int)] if shape is not None else []
    return sizes if shape is not None and len(sizes) == len(shape) - 2 > 0 else None
