"""A Resize or Pad that names the axes it changes gets numbers for every axis, as it had before opset 18.

onnxruntime moves the Transposes around integer layers through both and reorders the numbers by all axes then: with
numbers of some axes alone the model does not load, or fails when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, input_of, rank_of, static_shape

__all__ = ["every_axis"]

_REGION, _SCALES, _SIZES = 1, 2, 3
"""Inputs of a Resize: first and last places, factors, sizes."""
_PADS, _AXES = 1, 3
"""Inputs of a Pad."""


def every_axis(model: ir.Model) -> list[Note]:
    """Write each Resize and Pad of some axes for all of them: the others are neither resized nor padded.

    That changes no number. Left are those of unknown rank, of axes that are computed, that name an axis twice or one
    that there is not, and a Resize that keeps the aspect ratio of some axes.

    Args:
        model: changed in place, ranks inferred.

    Returns:
        One note with their number, if any.
    """
    namer = Namer(model)
    count = 0
    for node in list(all_nodes(model)):
        if node.domain == "" and node.op_type in ("Resize", "Pad"):
            axes = _axes(node)
            if axes:
                _widen(node, axes, namer)
                count += 1
    return [Note("every_axis", "", f"{count} Resize and Pad nodes have numbers for every axis")] if count else []


def _axes(node: ir.Node) -> list[int]:
    """The axes that a node names, counted from the first; none where it names none, or where it is left."""
    data, attributes = node.inputs[0], node.attributes
    rank = rank_of(data) or 0
    named: Sequence[int] = ()
    if node.op_type == "Resize":
        if attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch":
            named = attributes.get_ints("axes", ())
        lengths = {_REGION: 2, _SCALES: 1, _SIZES: 1}
    else:
        array = constant_array(input_of(node, _AXES))
        if array is not None and array.dtype == np.int64:
            named = array.reshape(-1).tolist()
        lengths = {_PADS: 2}
    if not all(-rank <= axis < rank for axis in named):
        return []
    axes = [axis % rank for axis in named]
    fit = all(_fits(node, index, times * len(axes)) for index, times in lengths.items())
    return axes if fit and len(set(axes)) == len(axes) else []


def _fits(node: ir.Node, index: int, count: int) -> bool:
    """Whether an input is absent, computed, or has so many numbers: what else there is, is left to the checker."""
    array = constant_array(input_of(node, index))
    return array is None or array.size in (0, count)


def _widen(node: ir.Node, axes: Sequence[int], namer: Namer) -> None:
    data = node.inputs[0]
    assert data is not None and data.shape is not None
    rank = len(data.shape)
    both = [*axes, *(axis + rank for axis in axes)]
    if node.op_type == "Pad":
        _fill(node, _PADS, np.zeros(2 * rank, np.int64), both, namer)
        node.resize_inputs(_AXES)
        return
    others: AnyArray | ir.Value = np.array(static_shape(data) or (), np.int64)
    if len(node.inputs) > _SIZES and static_shape(data) is None:
        others = _made(node, ir.node("Shape", [data]), namer, ir.DataType.INT64, rank)
    _fill(node, _REGION, np.repeat(np.array([0, 1], np.float32), rank), both, namer)
    _fill(node, _SCALES, np.ones(rank, np.float32), axes, namer)
    _fill(node, _SIZES, others, axes, namer)
    del node.attributes["axes"]


def _fill(node: ir.Node, index: int, others: AnyArray | ir.Value, places: Sequence[int], namer: Namer) -> None:
    """Give an input of some axes the numbers of all: ``others``, with those it has put at their places.

    Where either is computed they are joined, and picked in order: shapes are inferred through that.
    """
    values = input_of(node, index)
    if values is None or not values.name:
        return
    graph, array = node.graph, constant_array(values)
    assert isinstance(graph, ir.Graph)
    if array is not None and array.size == 0:
        return  # as good as absent
    if array is not None and not isinstance(others, ir.Value):
        full = others.astype(array.dtype)
        full[list(places)] = array.reshape(-1)
        node.replace_input_with(index, set_constant(graph, namer, f"{values.name}_every_axis", full))
        return
    kind = values.dtype or ir.DataType.INT64
    count = others.shape[0] if others.shape is not None else 0
    assert isinstance(count, int)
    if not isinstance(others, ir.Value):
        others = set_constant(graph, namer, f"{values.name}_others", others.astype(kind.numpy()))
    order = np.arange(count)
    order[list(places)] = count + np.arange(len(places))
    joined = _made(node, ir.node("Concat", [others, values], {"axis": 0}), namer, kind, count + len(places))
    wanted = set_constant(graph, namer, f"{values.name}_order", order.astype(np.int64))
    node.replace_input_with(index, _made(node, ir.node("Gather", [joined, wanted]), namer, kind, count))


def _made(node: ir.Node, made: ir.Node, namer: Namer, kind: ir.DataType, count: int) -> ir.Value:
    """What a new node in front of another gives: so many numbers in a line."""
    graph, value = node.graph, made.outputs[0]
    assert isinstance(graph, ir.Graph)
    made.name = namer.node(f"{node.name}_{made.op_type}")
    value.name, value.type, value.shape = namer.fresh(f"{made.name}_0"), ir.TensorType(kind), ir.Shape([count])
    graph.insert_before(node, [made])
    return value
