"""Operators that leave channels as they are: any mixing of them may as well come behind as in front."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.graph.recognition.region import axes_of
from onnxq.graph.values import constant_array, input_of, rank_of

__all__ = ["Passage", "passage"]


@dataclass(frozen=True, slots=True)
class Passage:
    """Where a node's tensors hold the same channels; axes are negative, from the end.

    Attributes:
        inputs: index of each input that does → axis.
        axis: of the outputs.
    """

    inputs: dict[int, int]
    axis: int


def passage(node: ir.Node, value: ir.Value, axis: int) -> Passage | None:
    """Where else a node holds the channels of one of its tensors; None where mixing them does not pass through it.

    Args:
        node: that reads or makes it.
        value: the tensor.
        axis: of its channels, negative from the end.
    """
    first = node.inputs[0] if node.inputs else None
    if node.domain != "" or first is None:
        return None
    made = value.producer() is node
    rank = rank_of(first) or 0
    before = next((a for a in (axis, *range(-rank, 0)) if _axis_after(node, a) == axis), None) if made else axis
    after = _axis_after(node, before) if before is not None else None
    if before is None or after is None:
        return None
    inputs = dict.fromkeys(_carriers(node, before), before)
    if not inputs or (not made and any(v is value and i not in inputs for i, v in enumerate(node.inputs))):
        return None
    return Passage(inputs, after)


def _carriers(node: ir.Node, axis: int) -> tuple[int, ...]:
    """Inputs that hold the channels."""
    match node.op_type:
        case "Add" | "Sub" | "Concat":
            return tuple(range(len(node.inputs)))
        case "Mul":
            return tuple(i for i in (0, 1) if _alike(node.inputs[1 - i], axis))[:1]
        case "Div":
            return (0,) if _alike(node.inputs[1], axis) else ()
    return (0,)


def _axis_after(node: ir.Node, axis: int) -> int | None:
    """The axis of a node's outputs that holds what an axis of its inputs does; None where it does not stay whole."""
    first = node.inputs[0]
    shape = first.shape if first is not None else None
    rank = len(shape) if shape is not None else None
    match node.op_type:
        case "Add" | "Sub" | "Mul" | "Div" | "Identity" | "Expand":
            return axis
        case "AveragePool" | "GlobalAveragePool":
            return axis if rank == 1 - axis else None
        case "Resize":
            return axis if _resizes_others(node, axis) else None
        case "Pad":
            return axis if _pads_with_zeros(node, axis) else None
    if rank is None or rank < -axis:
        return None
    place = rank + axis
    match node.op_type:
        case "Transpose":
            perm = node.attributes.get_ints("perm", None) or list(range(rank))[::-1]
            return list(perm).index(place) - rank
        case "Flatten" | "Reshape" | "Squeeze" | "Unsqueeze":
            return _kept_whole(first, node.outputs[0], axis)
        case "Concat" | "Split":
            return axis if node.attributes.get_int("axis", 0) % rank != place else None
        case "Slice":
            axes = constant_array(input_of(node, 3))
            return axis if axes is not None and place not in {int(a) % rank for a in axes} else None
        case "Gather":
            return _after_gather(node, axis, rank)
        case "ReduceMean" | "ReduceSum":
            return _after_reduction(node, axis, rank)
    return None


def _alike(value: ir.Value | None, axis: int) -> bool:
    """Whether a factor is the same for all channels."""
    shape = value.shape if value is not None else None
    return shape is not None and (len(shape) < -axis or shape[axis] == 1)


def _kept_whole(before: ir.Value | None, after: ir.Value, axis: int) -> int | None:
    """The axis that holds the same as one of the same elements in another shape."""
    if before is None or before.shape is None or after.shape is None:
        return None
    old, new = list(before.shape), list(after.shape)
    place = len(old) + axis
    for other, size in enumerate(new):
        if size != old[place] or not isinstance(size, int):
            continue
        inside, outside = (old[place + 1 :], new[other + 1 :]), (old[:place], new[:other])
        if _as_many(*inside) or _as_many(*outside):
            return other - len(new)
    return None


def _as_many(one: list[int | ir.SymbolicDim], other: list[int | ir.SymbolicDim]) -> bool:
    """Whether axes hold equally many elements for sure."""
    numbers = [[size for size in sizes if isinstance(size, int)] for sizes in (one, other)]
    names = [[size.value for size in sizes if not isinstance(size, int)] for sizes in (one, other)]
    return math.prod(numbers[0]) == math.prod(numbers[1]) and names[0] == names[1] and None not in names[0]


def _after_gather(node: ir.Node, axis: int, rank: int) -> int | None:
    """Of what is picked along another axis."""
    indices = node.inputs[1]
    picked = node.attributes.get_int("axis", 0) % rank
    if indices is None or indices.shape is None or picked == rank + axis:
        return None
    return axis if picked < rank + axis else axis - (len(indices.shape) - 1)


def _after_reduction(node: ir.Node, axis: int, rank: int) -> int | None:
    """Of a mean or sum over other axes."""
    axes = [a % rank for a in axes_of(node) or ()]
    if not axes or rank + axis in axes:
        return None
    gone = 0 if node.attributes.get_int("keepdims", 1) else sum(a > rank + axis for a in axes)
    return axis + gone


def _resizes_others(node: ir.Node, axis: int) -> bool:
    """Whether a Resize is over other axes than that of the channels, and makes nothing of its own."""
    sizes = [
        value.shape[axis] if value is not None and value.shape else None for value in (node.inputs[0], *node.outputs)
    ]
    cropping = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return sizes[0] == sizes[1] and isinstance(sizes[0], int) and not cropping


def _pads_with_zeros(node: ir.Node, axis: int) -> bool:
    """Whether a Pad puts zeros on other axes than that of the channels."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return False
    inputs = [*node.inputs, None, None, None]
    pads, filling = constant_array(inputs[1]), inputs[2]
    if pads is None or inputs[3] is not None:
        return False
    rank = pads.size // 2
    number = constant_array(filling)
    zeros = filling is None or (number is not None and not number.any())
    return zeros and not pads.reshape(2, rank)[:, axis].any()
