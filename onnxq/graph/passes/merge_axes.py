"""Transposes of many dimensions, with those that stay next to each other written as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import only_reader

__all__ = ["merge_axes"]


def merge_axes(model: ir.Model, most: int, stays: Callable[[ir.Node], bool] = lambda node: False) -> list[Note]:
    """Merge axes that a Transpose of more than ``most`` dimensions keeps next to each other, between two Reshapes.

    A shuffle of channels, [N, g, c, H, W] to [N, c, g, H, W], becomes one of [N, g, c, H * W]: the same elements in the
    same order. Left alone is one of which anything else reads what is between, of no elements, or of more than one size
    that is not known.

    Args:
        model: changed in place, its shapes inferred. Nodes and tensors keep their names; those between the Reshapes
            have the merged shapes.
        most: dimensions that may stay.
        stays: whether a Transpose is left as it is, because its target knows it.

    Returns:
        One note with the number of Transposes, if any.
    """
    namer = Namer(model)
    transposes = [node for node in all_nodes(model) if node.op_type == "Transpose" and not stays(node)]
    count = sum(_merge(node, most, namer) for node in transposes)
    return [Note("merge_axes", "", f"{count} Transpose nodes have fewer dimensions")] if count else []


def _merge(node: ir.Node, most: int, namer: Namer) -> bool:
    before, after = node.inputs[0], node.outputs[0]
    front, behind = before.producer() if before is not None else None, only_reader(after)
    if before is None or only_reader(before) is None or not (_is_reshape(front) and _is_reshape(behind)):
        return False
    assert front is not None and behind is not None
    sizes, target = _sizes(before), _sizes(behind.outputs[0])
    runs = _runs(node.attributes.get_ints("perm", ()))
    if sizes is None or target is None or len(sizes) <= most or not 0 < len(runs) < len(sizes):
        return False
    order = sorted(range(len(runs)), key=lambda k: runs[k])
    node.attributes["perm"] = ir.AttrInt64s("perm", [order.index(k) for k in range(len(runs))])
    merged = [max(prod(sizes[axis] for axis in run), -1) for run in runs]
    after.shape = _shape(merged)
    before.shape = _shape([merged[k] for k in order])
    for reshape, wanted in ((front, [merged[k] for k in order]), (behind, target)):
        assert isinstance(reshape.graph, ir.Graph)
        stem = f"{reshape.outputs[0].name}_sizes"
        reshape.replace_input_with(1, set_constant(reshape.graph, namer, stem, np.asarray(wanted, np.int64)))
    return True


def _is_reshape(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Reshape" and node.domain == ""


def _sizes(value: ir.Value) -> list[int] | None:
    """The sizes of a tensor, as a Reshape takes them: at most one is not known, -1, and none is 0."""
    if value.shape is None:
        return None
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    return sizes if sizes.count(-1) < 2 and 0 not in sizes else None


def _shape(sizes: Sequence[int]) -> ir.Shape:
    return ir.Shape([None if size < 0 else size for size in sizes])


def _runs(perm: Sequence[int]) -> list[list[int]]:
    """Axes that follow each other before and behind, in the order behind."""
    runs: list[list[int]] = []
    for axis in perm:
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs
