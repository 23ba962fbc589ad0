"""Convolutions in groups as plain ones, for what computes some of them wrongly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxq.graph.layer import replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import OTHER_AXES, AnyArray, constant_array

__all__ = ["ungroup"]


def ungroup(model: ir.Model, chosen: Callable[[ir.Node, AnyArray], bool]) -> int:
    """Write convolutions in groups as plain ones, with zeros for the channels of other groups.

    Args:
        model: changed in place; nodes and tensors keep their names, no number that the model computes changes.
        chosen: of a convolution in groups and its constant weight (C, D / groups, ...), whether to write it so.

    Returns:
        How many are.
    """
    namer, count = Namer(model), 0
    for node in all_nodes(model):
        groups = node.attributes.get_int("group", 1)
        if node.op_type != "Conv" or node.domain != "" or groups == 1:
            continue
        weight, array = node.inputs[1], constant_array(node.inputs[1])
        if weight is None or weight.dtype is None or array is None or not chosen(node, array):
            continue
        replace_constant(node, 1, _plain(array, groups), namer, f"{weight.name}_plain", weight.dtype)
        if (made := node.inputs[1]) is not None and made is not weight:
            made.meta[OTHER_AXES] = weight.name, tuple(range(array.ndim))  # on the same grid, with the same channels
        node.attributes["group"] = ir.AttrInt64("group", 1)
        count += 1
    return count


def _plain(array: AnyArray, groups: int) -> AnyArray:
    """The weight (C, D / groups, ...) as one of (C, D, ...)."""
    made, read = array.shape[0] // groups, array.shape[1]
    plain = np.zeros((array.shape[0], groups * read, *array.shape[2:]), array.dtype)
    for group in range(groups):
        rows = slice(group * made, (group + 1) * made)
        plain[rows, group * read : (group + 1) * read] = array[rows]
    return plain
