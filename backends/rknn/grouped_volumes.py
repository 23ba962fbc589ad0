"""Convolutions of volumes in groups, which RKNN-Toolkit2 computes wrongly or crashes on."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.layer import replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import OTHER_AXES, AnyArray, constant_array

__all__ = ["ungroup_volumes"]

_VOLUMES = 5
"""Axes of the weight of a convolution over three."""


def ungroup_volumes(model: ir.Model) -> list[Note]:
    """Write convolutions of volumes in groups as plain ones, with zeros for the channels of other groups.

    RKNN-Toolkit2 2.5.0 computes one whose every channel gives several wrongly, by up to 127 steps, and crashes on
    groups of several. Left are those whose every channel gives one, which it computes rightly.

    Args:
        model: changed in place; nodes and tensors keep their names, no number that the model computes changes.

    Returns:
        One note with the number of convolutions, if any.
    """
    namer, count = Namer(model), 0
    for node in all_nodes(model):
        array = constant_array(node.inputs[1]) if node.op_type == "Conv" and node.domain == "" else None
        groups = node.attributes.get_int("group", 1)
        if array is None or array.ndim != _VOLUMES or groups == 1 or (groups, 1) == array.shape[:2]:
            continue
        weight = node.inputs[1]
        assert weight is not None and weight.dtype is not None
        replace_constant(node, 1, _plain(array, groups), namer, f"{weight.name}_plain", weight.dtype)
        if (made := node.inputs[1]) is not None and made is not weight:
            made.meta[OTHER_AXES] = weight.name, tuple(range(_VOLUMES))  # on the same grid, with the same channels
        node.attributes["group"] = ir.AttrInt64("group", 1)
        count += 1
    what = f"{count} convolutions of volumes in groups are plain ones: RKNN-Toolkit2 computes them wrongly or crashes"
    return [Note("grouped_volumes", "", what)] if count else []


def _plain(array: AnyArray, groups: int) -> AnyArray:
    """The weight (C, D / groups, ...) as one of (C, D, ...)."""
    made, read = array.shape[0] // groups, array.shape[1]
    plain = np.zeros((array.shape[0], groups * read, *array.shape[2:]), array.dtype)
    for group in range(groups):
        rows = slice(group * made, (group + 1) * made)
        plain[rows, group * read : (group + 1) * read] = array[rows]
    return plain
