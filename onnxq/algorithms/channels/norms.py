"""Normalizations over the channels, as one operator or as a chain, with what they multiply and add at their end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.graph.recognition.region import REDUCTIONS, axes_of
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, scalar

__all__ = ["Norm", "Place", "find_norms"]

Place = tuple[ir.Node, int]
"""A node and the index of an input, which is constant."""
_OPERATORS = {"LayerNormalization": True, "RMSNormalization": False}
"""Operator → whether it takes the mean away."""
_GROUPS = {"layernorm": True, "rmsnorm": False}


@dataclass(frozen=True, slots=True)
class Norm:
    """Divides a tensor by its size along the last axis.

    Attributes:
        nodes: that do it.
        start: the tensor.
        end: what is made of it.
        factors: what it is multiplied by then, (C,) float32; None for nothing.
        offsets: what is added after that, (C,) float32; None for nothing.
        centred: whether it depends on the mean over the channels: that is taken away first, or one number is added to
            all of them.
    """

    nodes: tuple[ir.Node, ...]
    start: ir.Value
    end: ir.Value
    factors: Place | None
    offsets: Place | None
    centred: bool


def find_norms(model: ir.Model) -> list[Norm]:
    """The normalizations over the last axis, with constant factors and offsets.

    Args:
        model: normalized; left as it is.
    """
    return [*_operators(model), *_chains(model)]


def _operators(model: ir.Model) -> Iterator[Norm]:
    for node in all_nodes(model):
        start = node.inputs[0] if node.op_type in _OPERATORS and node.domain == "" else None
        if start is None or any(output.uses() for output in node.outputs[1:]):
            continue
        axis = node.attributes.get_int("axis", -1)
        last = axis == -1 or (start.shape is not None and axis + 1 == len(start.shape))
        places = [(node, index) for index in range(1, len(node.inputs))]
        if last and all(_per_channel(place) for place in places):
            factors, offsets = [*places, None][:2]
            yield Norm((node,), start, node.outputs[0], factors, offsets, _OPERATORS[node.op_type])


def _chains(model: ir.Model) -> Iterator[Norm]:
    for group in find_groups(model):
        start, end = group.inputs[0], group.outputs[0]
        if group.kind not in _GROUPS or start.shape is None or not _reduces_last(group, len(start.shape)):
            continue
        places = [
            (node, index)
            for node in group.nodes
            for index, value in enumerate(node.inputs)
            if node.op_type not in REDUCTIONS and (array := constant_array(value)) is not None and array.size > 1
        ]
        offsets, before = _at_end(end, "Add", places)
        factors, before = _at_end(before, "Mul", places)
        if set(places) == {place for place in (factors, offsets) if place} and all(map(_per_channel, places)):
            yield Norm(group.nodes, start, end, factors, offsets, _GROUPS[group.kind] or _adds_to_all(group))


def _adds_to_all(group: Group) -> bool:
    """Whether a chain adds a number to all channels, and not to what is the same for all, as its epsilon is."""
    shifts = [n.outputs[0].shape for n in group.nodes if n.op_type in ("Add", "Sub") and any(map(_is_number, n.inputs))]
    return any(shape is None or list(shape[-1:]) != [1] for shape in shifts)


def _is_number(value: ir.Value | None) -> bool:
    return scalar(value) is not None


def _reduces_last(group: Group, rank: int) -> bool:
    """Whether all reductions of a chain are over the last axis alone."""
    axes = [axes_of(node) for node in group.nodes if node.op_type in REDUCTIONS]
    return all(found in ((-1,), (rank - 1,)) for found in axes)


def _at_end(value: ir.Value, op_type: str, places: list[Place]) -> tuple[Place | None, ir.Value]:
    """The constant with which a node makes a tensor, and the other operand; none and the tensor where it does not."""
    node = value.producer()
    if node is None or node.op_type != op_type:
        return None, value
    for index in (0, 1):
        other = node.inputs[1 - index]
        if (node, index) in places and other is not None:
            return (node, index), other
    return None, value


def _per_channel(place: Place) -> bool:
    """Whether a constant is float32 and has one number a channel."""
    node, index = place
    value = node.inputs[index]
    array: AnyArray | None = constant_array(value)
    return array is not None and array.dtype == np.float32 and array.ndim > 0 and array.size == array.shape[-1]
