"""Two linear layers with nothing between them but operators through which a positive scale of a channel passes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.layer import Channels, Layer, Refusal, as_layer, check_finite, find_layer, replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import only_reader, scalar, static_shape

__all__ = ["LayerPair", "channel_rows", "find_pairs", "pair_at", "scale_input", "scale_output", "scale_pair"]

_ELEMENTWISE = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "Dropout"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze"})
_SATURATING = frozenset(
    {"Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Selu", "Softplus", "Gelu", "Erf"}
)
_LONGEST = 6
"""Operators between two layers."""


@dataclass(frozen=True, slots=True)
class LayerPair:
    """A layer whose output channels are the input channels of another, which alone reads them.

    Attributes:
        first: the layer before.
        second: the layer behind.
        path: the tensors from the output of the first to the input of the second, both included.
        operators: types of the operators between them.
        capped: the output of the Clip between them; None where there is none.
        cap: its upper bound; infinite where there is none.
    """

    first: Layer
    second: Layer
    path: tuple[ir.Value, ...]
    operators: tuple[str, ...]
    capped: ir.Value | None = None
    cap: float = math.inf

    @property
    def name(self) -> str:
        """Name of the second layer's node; no other pair has it."""
        return self.second.node.name or ""


def find_pairs(model: ir.Model, *, clip: bool = False) -> tuple[list[LayerPair], Counter[str]]:
    """The pairs of a model in the order of the graph, and the reasons why other layers are in none, counted.

    Layers that read a model input, or what no layer makes, count under no reason.

    Args:
        model: normalized; left as it is.
        clip: whether a Clip from 0 to a number above (ReLU6) may be in between. A scale passes through it only where
            it reaches its upper bound neither before nor after, see :attr:`LayerPair.cap`.
    """
    pairs: list[LayerPair] = []
    reasons: Counter[str] = Counter()
    for node in all_nodes(model):
        found = _pair_or_reason(node, clip)
        if isinstance(found, LayerPair):
            pairs.append(found)
        elif found is not None:
            reasons[found] += 1
    return pairs, reasons


def pair_at(node: ir.Node) -> LayerPair:
    """The pair whose second layer a node is.

    Args:
        node: of a copy of the model in which :func:`find_pairs` found the pair; scaled since then, maybe.

    Raises:
        Refusal: it is in none.
    """
    second = as_layer(node)
    pair = None if second is None else _pair(second, clip=True)
    if pair is None:
        raise Refusal("no layer before it")
    return pair


def _pair_or_reason(node: ir.Node, clip: bool) -> LayerPair | str | None:
    try:
        second = as_layer(node)
        return None if second is None else _pair(second, clip)
    except Refusal as reason:
        return str(reason)


def _pair(second: Layer, clip: bool) -> LayerPair | None:
    path: list[ir.Value] = []
    capped, cap = None, math.inf
    operators: list[str] = []
    value = second.node.inputs[0]
    while True:
        if value is None or value.producer() is None:
            return None
        path.append(value)
        first = find_layer(value)
        if first is not None:
            break
        node = value.producer()
        assert node is not None
        if node.domain != "" or len(operators) >= _LONGEST:
            return None
        bound = _upper_bound(node) if clip and capped is None else None
        if bound is not None:
            capped, cap = value, bound
        elif not _passes(node, value):
            if node.op_type in _SATURATING and find_layer(node.inputs[0]) is not None:
                raise Refusal(f"after {node.op_type}")
            return None
        operators.append(node.op_type)
        value = node.inputs[0]
    for inner in path:
        if inner.is_graph_output():
            raise Refusal("its input is a model output")
        if only_reader(inner) is None:
            raise Refusal("its input has other readers")
    _check(first, second, operators)
    return LayerPair(first, second, tuple(reversed(path)), tuple(reversed(operators)), capped, cap)


def _passes(node: ir.Node, made: ir.Value) -> bool:
    """Whether ``f(s x) = s f(x)`` for positive s of each channel, and channels stay what they are."""
    if node.op_type in _ELEMENTWISE:
        return made is node.outputs[0]
    if node.op_type in _POOLS:
        return made is node.outputs[0] and not any(output.uses() for output in node.outputs[1:])
    if node.op_type in _VIEWS:
        before, after = static_shape(node.inputs[0]), static_shape(made)
        return (
            before is not None
            and after is not None
            and len(before) > 2
            and len(after) == 2
            and before[:2] == after
            and all(dim == 1 for dim in before[2:])
        )
    return False


def _upper_bound(node: ir.Node) -> float | None:
    """Where a Clip from 0 ends; None for any other node."""
    if node.op_type != "Clip" or len(node.inputs) < 3:
        return None
    low, high = map(scalar, node.inputs[1:3])
    return high if low == 0.0 and high is not None and high > 0.0 else None


def _check(first: Layer, second: Layer, operators: list[str]) -> None:
    for layer in (first, second):
        _check_weights(layer)
    if first.node.graph is not second.node.graph:
        raise Refusal("the layers are in different graphs")
    if not first.is_conv and any(op in _POOLS or op in _VIEWS for op in operators):
        raise Refusal("pooling after a matrix product")
    viewed = any(op in _VIEWS for op in operators)
    if (first.is_conv and not second.is_conv and not viewed) or (second.is_conv and not first.is_conv):
        raise Refusal("channels on different axes")
    bias = first.bias_array()
    if bias is not None and not _is_row(bias, first):
        raise Refusal("a bias that is not one number a channel")
    if first.out_channels() != second.in_channels():
        raise Refusal("different numbers of channels")


def _check_weights(layer: Layer) -> None:
    if len(layer.weight.uses()) != 1 or layer.weight.is_graph_output():
        raise Refusal("shared weights")
    if layer.weight.dtype != ir.DataType.FLOAT:
        raise Refusal("weights that are not float32")
    if layer.node.op_type == "MatMul" and len(layer.array_shape()) != 2:
        raise Refusal("a MatMul with a stack of weights")
    if layer.node.op_type == "Gemm" and layer.node.attributes.get_int("transA", 0) == 1:
        raise Refusal("a Gemm that reads its input transposed")


def _is_row(bias: NDArray[np.float64], layer: Layer) -> bool:
    return bias.shape[-1:] == (layer.out_channels(),) and bias.size == layer.out_channels()


def scale_pair(pair: LayerPair, scale: Channels, namer: Namer) -> None:
    """Divide the channels between two layers by a scale, which leaves what the second computes as it is.

    Args:
        pair: of the model to change.
        scale: (C,) positive, what the tensors between are divided by.
        namer: names new constants.

    Raises:
        Refusal: the weights would not be finite; nothing has been changed.
    """
    check_finite(pair.first.scaled(1.0 / scale), pair.second.scaled_inputs(scale), dtype=ir.DataType.FLOAT)
    scale_output(pair.first, scale, namer)
    scale_input(pair.second, scale, namer)


def scale_output(layer: Layer, scale: Channels, namer: Namer) -> None:
    """Let a layer compute its output divided by ``scale``, (M,) float64; its bias must be one number a channel."""
    dtype = layer.weight.dtype or ir.DataType.FLOAT
    base = layer.node.name or "layer"
    bias = layer.bias_array()
    replace_constant(layer.node, 1, layer.scaled(1.0 / scale), namer, f"{base}_weight", dtype)
    if bias is None:
        return
    divided = (bias / scale).reshape(bias.shape)
    if layer.add is not None:
        index = 0 if layer.add.inputs[0] is layer.bias else 1
        replace_constant(layer.add, index, divided, namer, f"{base}_bias", dtype)
    else:
        if layer.node.op_type == "Gemm":
            layer.node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
        replace_constant(layer.node, 2, divided, namer, f"{base}_bias", dtype)


def scale_input(layer: Layer, scale: Channels, namer: Namer) -> None:
    """Let a layer give for ``x`` what it gave for ``scale * x``, (C,) float64."""
    dtype = layer.weight.dtype or ir.DataType.FLOAT
    replace_constant(layer.node, 1, layer.scaled_inputs(scale), namer, f"{layer.node.name}_weight", dtype)


def channel_rows(layer: Layer, weight: NDArray[np.floating]) -> NDArray[np.float64]:
    """An array of the shape of a layer's weight as (outputs, input channels of its group, taps), float64.

    Args:
        layer: the layer; output channel o of a convolution with g groups reads group ``o // (outputs / g)``.
        weight: of the shape of its weight.
    """
    array = np.asarray(weight, np.float64)
    match layer.node.op_type:
        case "Conv":
            return array.reshape(array.shape[0], array.shape[1], -1)
        case "ConvTranspose":  # (C, M/g, ...) -> (M, C/g, taps)
            groups = layer.groups
            split = array.reshape(groups, array.shape[0] // groups, array.shape[1], -1)
            return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(
                groups * array.shape[1], array.shape[0] // groups, -1
            )
        case "Gemm" if layer.node.attributes.get_int("transB", 0):
            return array[:, :, None]
        case _:
            return np.ascontiguousarray(array.T)[:, :, None]
