"""Linear layers with constant weights, seen alike: what it takes to scale and shift their output or input channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.values import AnyArray, constant_array, input_of, is_constant, rank_of

__all__ = [
    "FLOATS",
    "Channels",
    "Layer",
    "Refusal",
    "Shared",
    "as_layer",
    "check_finite",
    "find_layer",
    "per_channel",
    "replace_constant",
]

Channels = NDArray[np.float64]
"""A number for each channel, (C,) float64."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Refusal(Exception):  # noqa: N818 - an answer on the way, never shown to a user as an error
    """Why something cannot be folded; nothing has been changed."""


class Shared(Refusal):
    """Others need the layer's output as it is."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A Conv, ConvTranspose, Gemm or MatMul with constant weights.

    Attributes:
        node: the operator.
        weight: its constant weight: Conv (M, C/g, ...), ConvTranspose (C, M/g, ...), Gemm (K, N) or (N, K),
            MatMul (..., K, N).
        bias: its constant bias or None; for MatMul the constant that ``add`` adds.
        add: the Add node that gives a MatMul its bias.
    """

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    add: ir.Node | None = None

    @property
    def output(self) -> ir.Value:
        """What the layer, with its bias, makes."""
        return (self.add or self.node).outputs[0]

    @property
    def groups(self) -> int:
        """Groups of a convolution; 1 for the rest."""
        return int(self.node.attributes.get_int("group", 1))

    @property
    def is_conv(self) -> bool:
        """Whether channels are on axis 1 of the output, else on the last."""
        return self.node.op_type in ("Conv", "ConvTranspose")

    def array(self) -> Channels:
        """The weight in float64."""
        array = constant_array(self.weight)
        if array is None:
            raise Refusal("its weight is not constant")
        return array.astype(np.float64)

    def rank(self) -> int | None:
        """Rank of the output, None when it is unknown."""
        if self.is_conv:
            return len(self.weight.const_value.shape) if self.weight.const_value is not None else None
        if self.node.op_type == "Gemm":
            return 2
        return rank_of(self.output)

    def out_channels(self) -> int:
        """How many channels the output has."""
        return self._channels(self.out_axis())

    def out_axis(self) -> int:
        """The axis of the weight that its output channels are on; those of one group for ConvTranspose."""
        match self.node.op_type:
            case "Conv":
                return 0
            case "ConvTranspose":
                return 1
            case "Gemm" if self.node.attributes.get_int("transB", 0):
                return 0
            case _:
                return len(self.array_shape()) - 1

    def in_axis(self) -> int:
        """The axis of the weight that its input channels are on; those of one group for Conv."""
        match self.node.op_type:
            case "Conv":
                return 1
            case "ConvTranspose":
                return 0
            case "Gemm":
                return 1 if self.node.attributes.get_int("transB", 0) else 0
            case _:
                return len(self.array_shape()) - 2

    def in_channels(self) -> int:
        """How many channels the input has."""
        return self._channels(self.in_axis())

    def array_shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        if self.weight.const_value is None:
            raise Refusal("its weight is not constant")
        return tuple(self.weight.const_value.shape.numpy())

    def scaled(self, scale: Channels) -> AnyArray:
        """The weight, in its own type, with which output channel i is ``scale[i]`` times what it is; rounded once."""
        weight = constant_array(self.weight)
        if weight is None:
            raise Refusal("its weight is not constant")
        return _product(weight, self._along(self.out_axis(), scale))

    def scaled_inputs(self, scale: Channels) -> Channels:
        """The weight, float64, that does to x what the layer's does to ``scale[c] * x[c]`` for each input channel c."""
        return np.asarray(self.array() * self._along(self.in_axis(), scale))

    def _channels(self, axis: int) -> int:
        """How many channels an axis of the weight stands for: axis 1 of a convolution holds those of one group."""
        return self.array_shape()[axis] * (self.groups if axis == 1 else 1)

    def _along(self, axis: int, numbers: Channels) -> Channels:
        """A number for each channel that an axis of the weight stands for, shaped to be multiplied with the weight."""
        shape = self.array_shape()
        if axis == 1 and self.groups > 1:  # the groups lie one behind the other on axis 0
            of_groups = numbers.reshape(self.groups, -1, *[1] * (len(shape) - 2))
            return np.repeat(of_groups, shape[0] // self.groups, axis=0)
        return numbers.reshape([-1 if at == axis else 1 for at in range(len(shape))])

    def response(self, shift: Channels) -> Channels:
        """What each output channel, (M,), gets from an input that is ``shift[c]`` everywhere; without padding."""
        weight = self.scaled_inputs(shift)
        match self.node.op_type:
            case "Conv":
                return np.asarray(weight.reshape(weight.shape[0], -1).sum(axis=1))
            case "Gemm":
                alpha = self.node.attributes.get_float("alpha", 1.0)
                return np.asarray(alpha * weight.sum(axis=1 if self.node.attributes.get_int("transB", 0) else 0))
            case "MatMul" if weight.ndim == 2:
                return np.asarray(weight.sum(axis=0))
        raise Refusal(f"a {self.node.op_type} does not spread a shift evenly over its output")

    def bias_array(self) -> AnyArray | None:
        """The bias in float64, for Gemm with beta in it; None without one."""
        if self.bias is None:
            return None
        array = constant_array(self.bias)
        if array is None:
            raise Refusal("its bias is not constant")
        result = array.astype(np.float64)
        return result * self.node.attributes.get_float("beta", 1.0) if self.node.op_type == "Gemm" else result


def find_layer(value: ir.Value | None) -> Layer | None:
    """The layer that makes ``value``, or None when it is not made by one with a constant, floating-point weight.

    Raises:
        Refusal: there is such a layer, but its bias is computed at run time.
    """
    node = value.producer() if value is not None else None
    if node is None or node.domain != "":
        return None
    if node.op_type == "Add":
        for index in (0, 1):
            inner, bias = node.inputs[index], node.inputs[1 - index]
            producer = inner.producer() if inner is not None else None
            if producer is not None and producer.op_type == "MatMul" and is_constant(bias) and inner is not None:
                layer = as_layer(producer)
                if (
                    layer is None
                    or producer.graph is not node.graph
                    or len(inner.uses()) != 1
                    or inner.is_graph_output()
                ):
                    continue
                if per_channel(constant_array(bias), layer) is not None:
                    return Layer(producer, layer.weight, bias, node)
        return None
    return as_layer(node)


def as_layer(node: ir.Node) -> Layer | None:
    """A node as a layer, without a look at what follows it; None when it is none, see :func:`find_layer`."""
    if node.domain != "" or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or not is_constant(weight) or weight.dtype not in FLOATS:
        return None
    rank = len(weight.const_value.shape)
    if rank < (2 if node.op_type in ("Gemm", "MatMul") else 3):
        return None
    bias = input_of(node, 2)
    if bias is not None and not is_constant(bias):
        raise Refusal(f"the bias of {node.op_type} is computed at run time")
    return Layer(node, weight, bias)


def per_channel(array: AnyArray | None, layer: Layer) -> Channels | None:
    """A constant broadcast onto a layer's output as one number a channel, (M,); None when it varies otherwise.

    Args:
        array: the constant, of any shape that broadcasts.
        layer: the layer.
    """
    rank = layer.rank()
    if array is None or (rank is None and array.ndim > 1):
        return None
    if array.size == 1 and (rank is None or array.ndim <= rank):
        return np.full(layer.out_channels(), array.reshape(()).astype(np.float64))
    rank = rank if rank is not None else 1
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    axis = 1 if layer.is_conv else rank - 1
    if any(size != 1 for index, size in enumerate(shape) if index != axis) or shape[axis] != layer.out_channels():
        return None
    return array.reshape(-1).astype(np.float64)


def replace_constant(
    node: ir.Node, index: int, array: NDArray[Any], namer: Namer, base: str, dtype: ir.DataType
) -> None:
    """Gives input ``index`` of a node other numbers: in place when it alone reads them, else in a constant of its own.

    Args:
        node: the reader.
        index: which input; added when the node has fewer.
        array: the numbers, rounded to ``dtype`` here.
        namer: names a new constant.
        base: name to build on where there was no constant before.
        dtype: type of the constant.
    """
    rounded = array.astype(dtype.numpy(), copy=False)
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    old = node.inputs[index]
    if old is not None and len(old.uses()) == 1 and not old.is_graph_output() and is_constant(old):
        old.const_value = ir.Tensor(rounded, dtype=dtype, name=old.name)
        old.shape, old.type = ir.Shape(rounded.shape), ir.TensorType(dtype)
        return
    graph = node.graph
    if graph is None:
        raise Refusal("the node belongs to no graph")
    value = set_constant(graph, namer, (old.name if old is not None else None) or base, rounded)
    node.replace_input_with(index, value)


def check_finite(*arrays: AnyArray, dtype: ir.DataType) -> None:
    """Refuses numbers that do not fit into ``dtype``."""
    for array in arrays:
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(array.astype(dtype.numpy(), copy=False)).all():
                raise Refusal("the folded numbers would not be finite")


def _product(weight: AnyArray, factors: Channels) -> AnyArray:
    """In float64, rounded to the type of the weight, without a float64 copy of it where NumPy can."""
    with np.errstate(over="ignore", invalid="ignore"):
        if weight.dtype == np.float32:
            product: AnyArray = np.empty_like(weight)
            np.multiply(weight, factors, out=product, dtype=np.float64, casting="same_kind")
            return product
        return np.asarray((weight.astype(np.float64) * factors).astype(weight.dtype))
