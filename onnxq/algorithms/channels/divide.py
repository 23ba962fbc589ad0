"""Dividing the channels of a tensor by a scale: in the constants that make it, or by a Mul in front of its readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxq.algorithms.channels.pairs import scale_output
from onnxq.graph.edits import set_constant
from onnxq.graph.layer import Channels, Layer, Refusal, find_layer, replace_constant
from onnxq.graph.lookup import Lookup
from onnxq.graph.namer import Namer
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.values import constant_array, input_of, is_constant, only_reader

__all__ = ["Division", "Divisor", "divide", "insert_division"]

_THROUGH = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout"})
_NORMALIZATIONS = {"LayerNormalization": -1, "RMSNormalization": -1, "InstanceNormalization": 1}
"""Operators with a scale in input 1 and maybe a bias in input 2 → axis of the channels."""
_NORM_GROUPS = ("layernorm", "rmsnorm")


@dataclass(frozen=True, slots=True)
class Division:
    """Where a division of a tensor's channels goes, by names, so that it can be done in a copy of the model.

    Attributes:
        layers: outputs of the layers whose weights and biases are divided.
        constants: node, index of its input, and whether that is multiplied, not divided.
        changed: the tensors that change with it.
    """

    layers: tuple[str, ...]
    constants: tuple[tuple[str, int, bool], ...]
    changed: tuple[str, ...]


@dataclass(slots=True)
class _Edits:
    layers: list[Layer] = field(default_factory=list)
    constants: list[tuple[ir.Node, int, bool]] = field(default_factory=list)
    changed: list[ir.Value] = field(default_factory=list)


class Divisor:
    """Finds out how tensors of a model can be divided by folding the division into what makes them.

    Args:
        model: normalized, left unchanged. Groups of nodes (see :mod:`onnxq.graph.recognition.groups`) are looked
            for once.
    """

    def __init__(self, model: ir.Model) -> None:
        self._inside = {node: group.kind for group in find_groups(model) for node in group.nodes}

    def division(self, value: ir.Value, channels: int, axis: int) -> Division:
        """How a tensor can be divided.

        Args:
            value: the tensor; its readers are the caller's business.
            channels: how many channels it has.
            axis: where they are, 1 or -1.

        Raises:
            Refusal: why it cannot.
        """
        edits = self._edits(value, channels, axis)
        return Division(
            tuple(layer.output.name or "" for layer in edits.layers),
            tuple((node.name or "", index, multiply) for node, index, multiply in edits.constants),
            tuple(dict.fromkeys(v.name or "" for v in edits.changed)),
        )

    def _edits(self, value: ir.Value, channels: int, axis: int) -> _Edits:
        edits = _Edits()
        self._walk(value, channels, axis, edits)
        return edits

    def _walk(self, value: ir.Value, channels: int, axis: int, edits: _Edits) -> None:
        node = value.producer()
        if node is None:
            raise Refusal("a model input")
        if value.is_graph_output():
            raise Refusal("a model output")
        if node.domain != "":
            raise Refusal(f"after {node.domain}::{node.op_type}")
        edits.changed.append(value)
        layer = find_layer(value)
        if layer is not None:
            _check_layer(layer, channels, axis)
            edits.layers.append(layer)
            edits.changed.append(layer.node.outputs[0])
            return
        kind = self._inside.get(node)
        if node.op_type in _NORMALIZATIONS:
            _check_normalization(node, channels, axis)
            edits.constants += [(node, i, False) for i in (1, 2) if input_of(node, i) is not None]
        elif node.op_type in ("Mul", "Div", "Add", "Sub"):
            self._binary(node, kind, channels, axis, edits)
        elif node.op_type in _THROUGH and kind is None:
            self._alone(node.inputs[0], channels, axis, edits)
        else:
            raise Refusal(f"after {node.op_type}" if kind is None else f"after a {kind}")

    def _binary(self, node: ir.Node, kind: str | None, channels: int, axis: int, edits: _Edits) -> None:
        constants = [i for i, v in enumerate(node.inputs) if is_constant(v)]
        if kind is not None and kind not in _NORM_GROUPS:
            raise Refusal(f"after a {kind}")
        if len(constants) == 1:
            self._by_constant(node, constants[0], kind, channels, axis, edits)
        elif kind is not None or node.op_type != "Mul" or constants:
            raise Refusal(f"after {node.op_type}")
        else:
            self._product(node, channels, axis, edits)

    def _by_constant(
        self, node: ir.Node, index: int, kind: str | None, channels: int, axis: int, edits: _Edits
    ) -> None:
        """Divide the constant of a node: of a sum its other operand as well."""
        constant, other = node.inputs[index], node.inputs[1 - index]
        array = constant_array(constant)
        if array is None or constant is None or constant.dtype != ir.DataType.FLOAT:
            raise Refusal("a constant that is not float32")
        if kind is not None and array.size != channels:
            raise Refusal(f"after a {kind} without scale")
        if array.ndim > _rank(node.outputs[0]) or _size(other, axis) != channels:
            raise Refusal("a tensor of unknown shape")
        if node.op_type == "Div" and index == 0:
            raise Refusal("after Div")
        if node.op_type in ("Add", "Sub"):
            self._alone(other, channels, axis, edits)
        edits.constants.append((node, index, node.op_type == "Div"))

    def _product(self, node: ir.Node, channels: int, axis: int, edits: _Edits) -> None:
        """Divide the first operand of a product that can be."""
        for value in node.inputs:
            tried = _Edits()
            if value is None or _size(value, axis) != channels:
                continue
            try:
                self._alone(value, channels, axis, tried)
            except Refusal:
                continue
            edits.layers += tried.layers
            edits.constants += tried.constants
            edits.changed += tried.changed
            return
        raise Refusal("after Mul")

    def _alone(self, value: ir.Value | None, channels: int, axis: int, edits: _Edits) -> None:
        if value is None or only_reader(value) is None:
            raise Refusal("read elsewhere, too")
        self._walk(value, channels, axis, edits)


def divide(lookup: Lookup, division: Division, scale: Channels, axis: int) -> None:
    """Divide a tensor by a scale.

    Args:
        lookup: of the model, which is changed in place.
        division: how.
        scale: (C,) float64, positive.
        axis: of the channels, 1 or -1.
    """
    namer = lookup.namer
    for layer in [find_layer(lookup.made[name]) for name in division.layers]:
        if layer is not None:
            scale_output(layer, scale, namer)
    for name, index, multiply in division.constants:
        node = lookup.nodes[name]
        constant = node.inputs[index]
        array = constant_array(constant)
        assert constant is not None and array is not None and constant.dtype is not None
        factor = _shaped(scale if multiply else 1.0 / scale, node, axis)
        replace_constant(node, index, array * factor, namer, constant.name or "constant", constant.dtype)


def insert_division(value: ir.Value, readers: Sequence[ir.Node], scale: Channels, axis: int, namer: Namer) -> ir.Node:
    """Put a Mul by ``1 / scale`` between a tensor and some of its readers, which read it as input 0.

    Args:
        value: the tensor, of known rank.
        readers: nodes of one graph, in order.
        scale: (C,) float64 positive.
        axis: of the channels, 1 or -1.
        namer: names the node, its output and the constant.

    Returns:
        The Mul.
    """
    graph = readers[0].graph
    assert graph is not None
    factor = (1.0 / scale).astype(np.float32)
    if axis == 1:
        factor = factor.reshape(-1, *[1] * (_rank(value) - 2))
    base = value.name or "smoothed"
    constant = set_constant(graph, namer, f"{base}_smoothing", factor)
    node = ir.Node("", "Mul", [value, constant], name=namer.node(f"{base}_smooth"), num_outputs=1)
    made = node.outputs[0]
    made.name = namer.fresh(f"{base}_smoothed")
    made.type = value.type
    made.shape = value.shape.copy() if value.shape is not None else None
    graph.insert_before(readers[0], node)
    for reader in readers:
        reader.replace_input_with(0, made)
    return node


def _check_layer(layer: Layer, channels: int, axis: int) -> None:
    if layer.is_conv != (axis == 1) or layer.out_channels() != channels:
        raise Refusal("channels on different axes")
    if len(layer.weight.uses()) != 1 or layer.weight.dtype != ir.DataType.FLOAT:
        raise Refusal("shared weights")
    if layer.node.op_type == "MatMul" and len(layer.array_shape()) != 2:
        raise Refusal("a MatMul with a stack of weights")
    if layer.add is not None and only_reader(layer.node.outputs[0]) is None:
        raise Refusal("read elsewhere, too")
    bias = layer.bias_array()
    if bias is not None and (bias.size != channels or bias.shape[-1:] != (channels,)):
        raise Refusal("a bias that is not one number a channel")


def _check_normalization(node: ir.Node, channels: int, axis: int) -> None:
    if axis != _NORMALIZATIONS[node.op_type]:
        raise Refusal("channels on different axes")
    last = node.attributes.get_int("axis", -1)
    if axis == -1 and last != -1 and last != _rank(node.outputs[0]) - 1:
        raise Refusal(f"after {node.op_type} over several axes")
    if any(output.uses() for output in node.outputs[1:]):
        raise Refusal(f"after {node.op_type} with several outputs")
    for index in (1, 2):
        value = input_of(node, index)
        array = constant_array(value)
        if (value is None and index == 2) or (array is not None and array.shape == (channels,)):
            continue
        raise Refusal(f"after {node.op_type} whose scale is not constant")


def _shaped(factor: Channels, node: ir.Node, axis: int) -> Channels:
    """One number a channel, to multiply a constant operand with that is broadcast onto the node's output."""
    if axis == -1 or node.op_type in _NORMALIZATIONS:
        return factor
    return factor.reshape(-1, *[1] * (_rank(node.outputs[0]) - 2))


def _rank(value: ir.Value) -> int:
    if value.shape is None:
        raise Refusal("a tensor of unknown rank")
    return len(value.shape)


def _size(value: ir.Value | None, axis: int) -> int | None:
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else None
