"""Mul, Div, Add and Sub with one constant for all fold into the linear layer behind them.

What no layer makes has none before it that could take the arithmetic up (:mod:`onnxq.graph.passes.fold_affine`): what
an activation function gives, that is multiplied by one factor in PP-LCNet and MetaFormer's StarReLU. In integers each
of these nodes is one more rounding. What scales an input of the model stays: data is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_value
from onnxq.graph.layer import FLOATS, Layer, Refusal, as_layer, check_finite, replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.affine import fold_into_next, scale_and_shift
from onnxq.graph.passes.fold_affine import ARITHMETIC, fold_affine
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.recognition.for_bytes import MOVES
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array, only_reader

__all__ = ["Affine", "Cancels", "fold_forward", "one_affine"]

Cancels = Callable[[ir.Value, Sequence[Group]], bool]
"""Whether an offset may take off most of a tensor, given the activation functions that are several nodes."""


class Affine(NamedTuple):
    """``scale * x + shift``, and which input x is."""

    data: int
    scale: float
    shift: float


class _Place(NamedTuple):
    """Arithmetic, the layer behind it, and the node in between that adds a constant, if there is one."""

    node: ir.Node
    affine: Affine
    layer: Layer
    offset: ir.Node | None


def fold_forward(model: ir.Model, cancels: Cancels) -> list[Note]:
    """Folds arithmetic with one constant for all into the Conv, ConvTranspose, Gemm or MatMul that alone reads it.

    A factor always folds; an offset where the layer adds no zeros around what it reads, and takes off little of it.
    Where an offset stays, a factor in front of it folds all the same: ``a x + b`` is ``a (x + b / a)``. What is part of
    an activation function, or an output of the model, stays.

    Args:
        model: changed in place; normalized (:func:`onnxq.graph.passes.normalize.normalize`), and so it is left.
        cancels: of what offsets stay.

    Returns:
        A note of how many nodes were folded.
    """
    found = [node for graph in all_graphs(model) for node in graph if one_affine(node) is not None]
    if not any(_place(node) is not None for node in found):
        return []
    groups = find_groups(model)
    grouped = {node for group in groups for node in group.nodes}
    namer = Namer(model)
    alone = (node for node in reversed(found) if node not in grouped)
    folded = sum(_fold(node, groups, cancels, namer) for node in alone)  # one makes way for another
    if not folded:
        return []
    notes = [Note("fold_forward", "", f"{folded} element-wise nodes folded into the layers behind them")]
    return [*notes, *fold_affine(model), *remove_dead(model), *infer_shapes(model)]


def one_affine(node: ir.Node) -> Affine | None:
    """What a node does to one of its inputs, where the other one is a single constant number."""
    if node.op_type not in ARITHMETIC or node.domain != "" or len(node.inputs) != 2:
        return None
    for index in (0, 1):
        data, other = node.inputs[index], node.inputs[1 - index]
        array = constant_array(other) if other is not None else None
        if array is None or array.size != 1 or data is None or data.dtype not in FLOATS:
            continue
        if data.shape is None or array.ndim > len(data.shape):
            continue
        found = scale_and_shift(node.op_type, index, array.reshape(1).astype(np.float64))
        if found is not None:
            return Affine(index, *(float(numbers[0]) for numbers in found))
    return None


def _place(node: ir.Node) -> _Place | None:
    """Where a node of such arithmetic may fold to: the layer that alone reads it, or what an offset makes of it."""
    affine = one_affine(node)
    reader = only_reader(node.outputs[0]) if affine is not None else None
    if affine is None or reader is None or _is_of_an_input(node.inputs[affine.data]):
        return None
    offset = None
    if not affine.shift and (found := one_affine(reader)) is not None and found.scale == 1.0:
        offset, reader = reader, only_reader(reader.outputs[0])
    if reader is None or node.graph is not reader.graph:
        return None
    try:
        layer = as_layer(reader)
    except Refusal:
        return None
    if layer is None or reader.inputs[0] is not (offset or node).outputs[0] or len(layer.weight.uses()) > 1:
        return None
    return _Place(node, affine, layer, offset)


def _is_of_an_input(value: ir.Value | None) -> bool:
    """Whether nothing but movement and arithmetic with constants stands between an input of the model and a tensor."""
    while value is not None and (maker := value.producer()) is not None:
        arithmetic = one_affine(maker)
        if arithmetic is None and maker.op_type not in MOVES:
            return False
        value = maker.inputs[arithmetic.data if arithmetic is not None else 0]
    return value is not None and value.is_graph_input()


def _fold(node: ir.Node, groups: Sequence[Group], cancels: Cancels, namer: Namer) -> bool:
    """Fold a node into the layer behind it, where that can be done."""
    place = _place(node)
    data = node.inputs[place.affine.data] if place is not None else None
    if place is None or data is None or (place.affine.shift and cancels(data, groups)):
        return False
    try:
        if place.affine.shift:
            _fold_shift(place, namer)
        else:
            _fold_factor(place, namer)
    except Refusal:
        return False
    return True


def _fold_shift(place: _Place, namer: Namer) -> None:
    layer, affine = place.layer, place.affine
    scale, shift = (np.full(layer.in_channels(), number) for number in (affine.scale, affine.shift))
    fold_into_next(layer, place.node, scale, shift, namer, data=affine.data)


def _fold_factor(place: _Place, namer: Namer) -> None:
    """Of a factor for all it does not matter what is a channel."""
    node, layer, offset = place.node, place.layer, place.offset
    data, dtype = node.inputs[place.affine.data], layer.weight.dtype
    assert data is not None and dtype is not None
    weight = layer.scaled(np.full(layer.out_channels(), place.affine.scale))
    check_finite(weight, dtype=dtype)
    if offset is not None:
        _divide(offset, place.affine.scale, namer)
        offset.outputs[0].name = namer.fresh(f"{offset.outputs[0].name}_unscaled")
    replace_constant(layer.node, 1, weight, namer, f"{layer.node.name}_weight", dtype)
    replace_value(node.outputs[0], data)
    remove_nodes([node])


def _divide(offset: ir.Node, factor: float, namer: Namer) -> None:
    """Divide the constant that a node adds or subtracts."""
    affine = one_affine(offset)
    assert affine is not None
    value = offset.inputs[1 - affine.data]
    number = constant_array(value)
    if value is None or value.dtype is None or number is None or not factor:
        raise Refusal("nothing is left of what is multiplied by 0")
    with np.errstate(over="ignore"):
        divided = number.astype(np.float64) / factor
    check_finite(divided, dtype=value.dtype)
    replace_constant(offset, 1 - affine.data, divided, namer, f"{offset.name}_offset", value.dtype)
