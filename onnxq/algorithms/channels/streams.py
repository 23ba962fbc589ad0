"""Streams: tensors between layers, with nothing but operators between them that any mixing of channels passes through.

What a stream holds may be multiplied by an orthogonal matrix along its channels, if the weights and biases of the
layers that make it are multiplied by it as well, and those of the layers that read it by its transpose. The bottlenecks
of MobileNetV2 and EfficientNet with their residual Adds are such, or two linear layers in a row, and what the blocks of
a transformer add to where each normalizes what it reads: a normalization lets through what keeps lengths and the mean,
once its factors are those of the layers behind it (Ashkboos et al., SliceGPT: Compress Large Language Models by
Deleting Rows and Columns, 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.algorithms.channels.growth import Growth, mixing_layer
from onnxq.algorithms.channels.norms import Norm, find_norms
from onnxq.algorithms.channels.rotation import Matrix, Rotation
from onnxq.graph.layer import Layer, replace_constant
from onnxq.graph.lookup import Lookup
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Plan

__all__ = ["Scaling", "Stream", "find_streams", "quantized_streams", "turn", "turned_weights"]

_Place = tuple[str, int]
"""The name of a node and the index of an input, which is constant."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a normalization in a stream multiplies by and adds at its end.

    Attributes:
        factors: where they are, None for none.
        offsets: where they are, None for none.
        readers: nodes of the layers that read what it makes.
    """

    factors: _Place | None
    offsets: _Place | None
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """Tensors that hold the same channels, by names, so that they can be changed in a copy of the model.

    Attributes:
        size: how many channels.
        tensors: their names.
        writers: nodes of the layers that make some of the tensors, in the order of the graph.
        readers: nodes of the layers that read some.
        constants: node, index of its input, and axis of the channels, of constants that are added or picked from.
        scalings: of the normalizations in between.
        centred: whether one of them depends on the mean over the channels, which a rotation must leave as it is then.
    """

    size: int
    tensors: tuple[str, ...]
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    constants: tuple[tuple[str, int, int], ...]
    scalings: tuple[Scaling, ...]
    centred: bool


def find_streams(model: ir.Model) -> list[Stream]:
    """The streams of a model that have several channels, in the order of the graph.

    Args:
        model: normalized; left as it is.
    """
    found: list[Stream] = []
    seen: set[ir.Value] = set()
    norms = {node: norm for norm in find_norms(model) for node in norm.nodes}
    for node in all_nodes(model):
        layer = mixing_layer(node)
        if layer is None or node.outputs[0] in seen:
            continue
        growth = Growth.of(layer, norms)
        seen |= growth.axes.keys()
        if growth.closed and growth.size > 1 and growth.readers:
            found.append(_stream(growth))
    return found


def quantized_streams(model: ir.Model, plan: Plan) -> list[Stream]:
    """The streams of a model with a layer that a plan quantizes, or whose weight it stores as integers.

    Args:
        model: normalized; left as it is.
        plan: of the model.
    """
    quantized = {edge.node for edge in plan.by_edge()}
    return [stream for stream in find_streams(model) if not quantized.isdisjoint((*stream.writers, *stream.readers))]


def turned_weights(
    nodes: Mapping[str, ir.Node], stream: Stream, rotation: Rotation
) -> Iterator[tuple[ir.Node, Matrix]]:
    """The layers of a stream with the weights, float64, that they have where it is turned.

    A layer that reads and makes it comes twice, and each time with what the weight is at that moment.

    Args:
        nodes: of the model, by name.
        stream: one of its streams.
        rotation: of its channels; one that keeps their mean where the stream is centred.
    """
    for name in stream.writers:
        layer = _layer(nodes, name)
        yield layer.node, rotation.along(layer.array(), layer.out_axis())
    factors = {
        reader: _numbers(nodes, scaling.factors).reshape(-1)
        for scaling in stream.scalings
        if scaling.factors
        for reader in scaling.readers
    }
    for name in stream.readers:
        layer = _layer(nodes, name)
        weight = layer.scaled_inputs(factors[name]) if name in factors else layer.array()
        yield layer.node, rotation.along(weight, layer.in_axis())


def turn(lookup: Lookup, stream: Stream, rotation: Rotation) -> None:
    """Turn what a stream holds, which leaves what the model computes as it is.

    Args:
        lookup: of the model to change.
        stream: one of its streams.
        rotation: as for :func:`turned_weights`.
    """
    nodes = lookup.nodes
    for node, weight in turned_weights(nodes, stream, rotation):
        _replace(lookup, node, 1, weight)
    for name in stream.writers:
        layer = _layer(nodes, name)
        bias = layer.bias_array()
        if bias is not None:
            if layer.node.op_type == "Gemm":
                layer.node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
            _replace(lookup, layer.node, 2, rotation.along(_whole(bias, -1, stream.size), -1))
    for name, index, axis in stream.constants:
        array = _numbers(nodes, (name, index))
        _replace(lookup, nodes[name], index, rotation.along(_whole(array, axis, stream.size), axis))
    for scaling in stream.scalings:
        factors = _numbers(nodes, scaling.factors) if scaling.factors else np.ones(1)
        if scaling.offsets:
            node, index = nodes[scaling.offsets[0]], scaling.offsets[1]
            _replace(lookup, node, index, rotation.along(_numbers(nodes, scaling.offsets) / factors, -1))
        if scaling.factors:
            _replace(lookup, nodes[scaling.factors[0]], scaling.factors[1], np.ones_like(factors))


def _stream(growth: Growth) -> Stream:
    return Stream(
        growth.size,
        tuple(value.name or "" for value in growth.tensors()),
        tuple(node.name or "" for node in growth.writers),
        tuple(node.name or "" for node in growth.readers),
        tuple((node.name or "", index, axis) for (node, index), axis in growth.constants.items()),
        tuple(_scaling(norm, readers) for norm, readers in growth.norms.items()),
        any(norm.centred for norm in growth.norms),
    )


def _scaling(norm: Norm, readers: Sequence[ir.Node]) -> Scaling:
    factors, offsets = ((p[0].name or "", p[1]) if p else None for p in (norm.factors, norm.offsets))
    return Scaling(factors, offsets, tuple(node.name or "" for node in readers))


def _layer(nodes: Mapping[str, ir.Node], name: str) -> Layer:
    layer = mixing_layer(nodes[name])
    assert layer is not None
    return layer


def _numbers(nodes: Mapping[str, ir.Node], place: _Place) -> Matrix:
    """A constant that a node reads."""
    array = constant_array(nodes[place[0]].inputs[place[1]])
    assert array is not None
    return array.astype(np.float64)


def _whole(array: Matrix, axis: int, size: int) -> Matrix:
    """An array that is broadcast along the channels, with a number for each of them."""
    if array.ndim < -axis:
        array = array.reshape((1,) * (-axis - array.ndim) + array.shape)
    shape = list(array.shape)
    shape[axis] = size
    return np.broadcast_to(array, shape)


def _replace(lookup: Lookup, node: ir.Node, index: int, array: Matrix) -> None:
    replace_constant(node, index, np.ascontiguousarray(array), lookup.namer, f"{node.name}_turned", ir.DataType.FLOAT)
