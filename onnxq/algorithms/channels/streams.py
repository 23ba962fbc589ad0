"""Streams: tensors between layers, with nothing but operators between them that any mixing of channels passes through.

What a stream holds may be multiplied by an orthogonal matrix along its channels, if the weights and biases of the
layers that make it are multiplied by it as well, and those of the layers that read it by its transpose. The bottlenecks
of MobileNetV2 and EfficientNet with their residual Adds are such, or two linear layers in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.layer import Layer, Refusal, as_layer, replace_constant
from onnxq.graph.lookup import Lookup
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Plan

__all__ = ["Matrix", "Stream", "find_streams", "quantized_streams", "turn", "turned_weights"]

Matrix = NDArray[np.float64]
_Place = tuple[ir.Value, int]
"""A tensor, and the axis of its channels, negative from the end."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Tensors that hold the same channels, by names, so that they can be changed in a copy of the model.

    Attributes:
        size: how many channels.
        tensors: their names.
        writers: nodes of the layers that make some of the tensors, in the order of the graph.
        readers: nodes of the layers that read some.
        constants: node, index of its input, and axis of the channels, of constants that are added.
    """

    size: int
    tensors: tuple[str, ...]
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    constants: tuple[tuple[str, int, int], ...]


def find_streams(model: ir.Model) -> list[Stream]:
    """The streams of a model that have several channels, in the order of the graph.

    Args:
        model: normalized; left as it is.
    """
    found: list[Stream] = []
    seen: set[ir.Value] = set()
    for node in all_nodes(model):
        layer = _mixing(node)
        if layer is None or node.outputs[0] in seen:
            continue
        growth = _Growth(layer.out_channels())
        growth.spread((node.outputs[0], _axis(layer)))
        seen |= growth.axes.keys()
        if growth.closed and growth.size > 1 and growth.readers:
            found.append(growth.stream())
    return found


def quantized_streams(model: ir.Model, plan: Plan) -> list[Stream]:
    """The streams of a model with a layer that a plan quantizes, or whose weight it stores as integers.

    Args:
        model: normalized; left as it is.
        plan: of the model.
    """
    quantized = {edge.node for site in plan.sites for edge in site.readers}
    return [stream for stream in find_streams(model) if not quantized.isdisjoint((*stream.writers, *stream.readers))]


@dataclass(slots=True)
class _Growth:
    """A stream that grows from one of its tensors until it holds all that must change together."""

    size: int
    axes: dict[ir.Value, int] = field(default_factory=dict)
    writers: dict[ir.Node, None] = field(default_factory=dict)
    readers: dict[ir.Node, None] = field(default_factory=dict)
    constants: dict[tuple[ir.Node, int], int] = field(default_factory=dict)
    closed: bool = True

    def spread(self, start: _Place) -> None:
        """Find all the tensors; ``closed`` tells whether everything that touches them can take part."""
        waiting = [start]
        while waiting:
            value, axis = waiting.pop()
            if value in self.axes:
                self.closed &= self.axes[value] == axis
                continue
            self.axes[value] = axis
            node = value.producer()
            self.closed &= node is not None and not value.is_graph_output()
            if node is not None:
                waiting += self._made(node, axis)
            for use in value.uses():
                waiting += self._read(use.node, use.idx, value, axis)

    def stream(self) -> Stream:
        """What was found."""
        return Stream(
            self.size,
            tuple(value.name or "" for value in self.axes),
            tuple(node.name or "" for node in self.writers),
            tuple(node.name or "" for node in self.readers),
            tuple((node.name or "", index, axis) for (node, index), axis in self.constants.items()),
        )

    def _made(self, node: ir.Node, axis: int) -> list[_Place]:
        """What else is of the stream, since a node makes one of its tensors."""
        layer = _mixing(node)
        if layer is not None:
            self.closed &= layer.out_channels() == self.size and _axis(layer) == axis
            self.writers[node] = None
            return []
        return self._passed(node, axis)

    def _read(self, node: ir.Node, index: int, value: ir.Value, axis: int) -> list[_Place]:
        """What else is of the stream, since a node reads one of its tensors."""
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            return []
        if node.graph is not value.graph:
            return self._open()
        layer = _mixing(node)
        if layer is not None:
            self.closed &= index == 0 and layer.in_channels() == self.size and _axis(layer) == axis
            self.readers[node] = None
            return []
        return self._passed(node, axis)

    def _passed(self, node: ir.Node, axis: int) -> list[_Place]:
        """Inputs and output of a node that treats all channels alike, and no value otherwise than linearly."""
        passing = _passing_inputs(node, axis)
        if passing is None:
            return self._open()
        places = [(node.outputs[0], axis)]
        for index in passing:
            value = node.inputs[index]
            assert value is not None
            array = constant_array(value)
            if array is None:
                places.append((value, axis))
                continue
            each = array.ndim >= -axis and array.shape[axis] == self.size
            self.closed &= each or array.size == 1  # what differs by position alone would grow with the channels
            self.constants[node, index] = axis
        return places

    def _open(self) -> list[_Place]:
        self.closed = False
        return []


def turned_weights(nodes: Mapping[str, ir.Node], stream: Stream, matrix: Matrix) -> Iterator[tuple[ir.Node, Matrix]]:
    """The layers of a stream with the weights, float64, that they have where it is multiplied by an orthogonal matrix.

    A layer that reads and makes it comes twice, and each time with what the weight is at that moment.

    Args:
        nodes: of the model, by name.
        stream: one of its streams.
        matrix: (C, C) orthogonal; channel i becomes the sum over j of ``matrix[i, j]`` times channel j.
    """
    for names, writes in ((stream.writers, True), (stream.readers, False)):
        for name in names:
            layer = _mixing(nodes[name])
            assert layer is not None
            yield layer.node, _along(matrix, layer.array(), layer.out_axis() if writes else layer.in_axis())


def turn(lookup: Lookup, stream: Stream, matrix: Matrix) -> None:
    """Multiply what a stream holds by an orthogonal matrix, which leaves what the model computes as it is.

    Args:
        lookup: of the model to change.
        stream: one of its streams.
        matrix: as for :func:`turned_weights`.
    """
    nodes = lookup.nodes
    for node, weight in turned_weights(nodes, stream, matrix):
        _replace(lookup, node, 1, weight)
    for name in stream.writers:
        layer = _mixing(nodes[name])
        assert layer is not None
        bias = layer.bias_array()
        if bias is not None:
            if layer.node.op_type == "Gemm":
                layer.node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
            _replace(lookup, layer.node, 2, _along(matrix, _whole(bias, -1, stream.size), -1))
    for name, index, axis in stream.constants:
        node = nodes[name]
        array = constant_array(node.inputs[index])
        assert array is not None
        _replace(lookup, node, index, _along(matrix, _whole(array.astype(np.float64), axis, stream.size), axis))


def _mixing(node: ir.Node) -> Layer | None:
    """A node as a layer that reads and makes all channels alike, with a weight of its own; None when it is none."""
    try:
        layer = as_layer(node)
    except Refusal:
        return None
    if layer is None or layer.groups != 1 or layer.weight.dtype != ir.DataType.FLOAT:
        return None
    if len(layer.weight.uses()) != 1 or layer.weight.is_graph_output():
        return None
    if node.op_type == "MatMul" and len(layer.array_shape()) != 2:
        return None
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1:
        return None
    return layer


def _axis(layer: Layer) -> int:
    """Of the channels of what a layer reads and makes, from the end."""
    return 1 - len(layer.array_shape()) if layer.is_conv else -1


def _passing_inputs(node: ir.Node, axis: int) -> tuple[int, ...] | None:
    """Inputs whose channels are those of the output; None where mixing channels does not pass through the node."""
    if node.domain != "":
        return None
    match node.op_type:
        case "Add" | "Sub":
            return (0, 1)
        case "Identity":
            return (0,)
        case "AveragePool" | "GlobalAveragePool":
            value = node.inputs[0]
            on_second = value is not None and value.shape is not None and len(value.shape) == 1 - axis
            return (0,) if on_second else None
        case "Pad":
            return (0,) if _pads_with_zeros(node, axis) else None
    return None


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


def _whole(array: Matrix, axis: int, size: int) -> Matrix:
    """An array that is broadcast along the channels, with a number for each of them."""
    if array.ndim < -axis:
        array = array.reshape((1,) * (-axis - array.ndim) + array.shape)
    shape = list(array.shape)
    shape[axis] = size
    return np.broadcast_to(array, shape)


def _along(matrix: Matrix, array: NDArray[np.floating], axis: int) -> Matrix:
    """An array multiplied by a matrix along one axis."""
    return np.moveaxis(np.tensordot(matrix, array, axes=(1, axis)), 0, axis)


def _replace(lookup: Lookup, node: ir.Node, index: int, array: Matrix) -> None:
    replace_constant(node, index, np.ascontiguousarray(array), lookup.namer, f"{node.name}_turned", ir.DataType.FLOAT)
