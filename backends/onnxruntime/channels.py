"""Channels of zeros that make integer convolutions faster: kernels are slow where channels are left over of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.kernels import BLOCK, FOURS, STORED, quantizer_behind
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, input_of, is_constant, static_shape

__all__ = ["fill_up_channels", "filled_up"]

_MOST = (4, 3)
"""At most so many channels for so many."""

_STORED = (*STORED, ir.DataType.INT32)
"""Integers of weights and biases."""
_OF_ONE = frozenset(
    {
        "AveragePool", "Clip", "DequantizeLinear", "Elu", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid",
        "HardSwish", "Identity", "LeakyRelu", "MaxPool", "Mish", "QuantizeLinear", "Relu", "Selu", "Sigmoid",
        "Softplus", "Softsign", "Tanh",
    }
)  # fmt: skip
"""Operators that compute channels apart, and something finite of zeros. Scales and bounds are single numbers."""
_RESIZED = 3
"""Inputs of a Resize by factors."""
_OF_SEVERAL = frozenset({"Add", "Max", "Min", "Mul", "Sub", "Sum"})


_Found = MutableMapping[ir.Value, int | None]
_KNOWN: MutableMapping[ir.Graph, tuple[int, _Found]] = WeakKeyDictionary()
"""Graph → how many nodes it had, and what was found then, for costs alone: they are asked of each node again."""


@dataclass
class _Tied:
    """Tensors that have their channels from the same convolutions, and give them to convolutions alone.

    Attributes:
        channels: how many.
        values: the tensors.
        makers: convolutions of one group whose output is one of them.
        readers: those that read one.
        depthwise: convolutions that compute each channel by itself.
        closed: whether these are all, and channels may be added.
    """

    channels: int
    values: dict[ir.Value, None] = field(default_factory=dict)
    makers: dict[ir.Node, None] = field(default_factory=dict)
    readers: dict[ir.Node, None] = field(default_factory=dict)
    depthwise: dict[ir.Node, None] = field(default_factory=dict)
    closed: bool = False

    def filled(self, integer: Callable[[ir.Node], bool]) -> int:
        """Channels with those of zeros: as many as there are where kernels take these well, too many are missing, or
        other neighbours would be multiplied in pairs, see :mod:`onnxq.calibration.reduced`.

        Depthwise kernels in float compute one by one what does not come in fours, in up to ten times the time.

        Args:
            integer: whether a convolution has an integer kernel.
        """
        of = BLOCK if any(map(integer, self.depthwise)) else 1
        if of == 1 and (self.depthwise or any(map(integer, (*self.makers, *self.readers)))):
            of = FOURS
        if self.channels % 2 and any(map(_has_several_taps, self.readers)):
            return self.channels
        filled = -(-self.channels // of) * of
        return filled if filled * _MOST[1] <= self.channels * _MOST[0] else self.channels


def filled_up(value: ir.Value | None) -> int | None:
    """How many channels a tensor between integer convolutions will have; None where they stay as many as they are."""
    channels, maker = _channels(value), value.producer() if value is not None else None
    if value is None or maker is None or not isinstance(maker.graph, ir.Graph):
        return None
    if channels is None or channels % BLOCK == 0:
        return None
    found = _KNOWN.get(maker.graph)
    if found is None or found[0] != len(maker.graph):
        found = _KNOWN[maker.graph] = len(maker.graph), WeakKeyDictionary()
    known = found[1]
    if value not in known:
        tied = _tied(value, channels, lambda other: other in known and known[other] is None)
        filled = tied.filled(lambda conv: True) if tied.closed else channels
        known.update(dict.fromkeys(tied.values, filled if filled > channels else None))
    return known[value]


def fill_up_channels(model: ir.Model) -> None:
    """Add channels of zeros between convolutions of which some are integer, and zeros to the weights that read them.

    No other number changes. A tensor whose channels anything else reads than the operators between them, or that the
    model gives, has none added.

    Args:
        model: a rendered QDQ model, changed in place.
    """
    namer = Namer(model)
    seen, refused = set[ir.Value](), set[ir.Value]()
    for node in list(all_nodes(model)):
        made = node.outputs[0] if _is_conv(node) else None
        channels = _channels(made)
        if made is None or made in seen or channels is None or channels % BLOCK == 0:
            continue
        tied = _tied(made, channels, refused.__contains__)
        seen.update(tied.values)
        if not tied.closed:
            refused.update(tied.values)
            continue
        filled = tied.filled(lambda conv: quantizer_behind(conv) is not None)
        if filled > channels:
            _fill(tied, filled, namer)


def _channels(value: ir.Value | None) -> int | None:
    shape = value.shape if value is not None else None
    channels = shape[1] if shape is not None and len(shape) > 2 else None
    return channels if isinstance(channels, int) else None


def _tied(start: ir.Value, channels: int, refused: Callable[[ir.Value], bool]) -> _Tied:
    """All that has its channels from where a tensor has, or a part of it where they cannot be more.

    Args:
        start: the tensor.
        channels: how many it has.
        refused: whether the channels of a tensor are known to be unable to.
    """
    tied = _Tied(channels, {start: None})
    waiting = [start]
    while waiting:
        value = waiting.pop()
        maker = value.producer()
        if maker is None or refused(value) or _channels(value) != channels or value.is_graph_output():
            return tied
        for node, index in [(maker, None), *((use.node, use.idx) for use in value.uses())]:
            others = _follow(tied, node, index) if node.graph is maker.graph else None
            if others is None:
                return tied
            waiting += [other for other in others if other not in tied.values]
            tied.values.update(dict.fromkeys(others))
    tied.closed = bool(tied.makers)
    return tied


def _follow(tied: _Tied, node: ir.Node, index: int | None) -> list[ir.Value] | None:
    """The tensors that must have as many channels as one that a node reads at an index, or writes; None where it
    cannot be told.
    """
    if not _is_conv(node):
        return _beside(node)
    if index not in (None, 0) or not all(_can_be_longer(value) for value in node.inputs[1:] if value is not None):
        return None
    group = node.attributes.get_int("group", 1)
    if group == 1:
        (tied.makers if index is None else tied.readers)[node] = None
        return []
    weight, data = node.inputs[1], node.inputs[0]
    if weight is None or data is None or weight.shape is None or weight.shape[:2] != (group, 1):
        return None
    tied.depthwise[node] = None
    return [node.outputs[0], data]


def _beside(node: ir.Node) -> list[ir.Value] | None:
    if node.op_type == "Resize" and node.domain == "":
        scales = constant_array(node.inputs[2]) if len(node.inputs) == _RESIZED else None
        kept = scales is not None and scales.size > 1 and (scales[:2] == 1).all() and "axes" not in node.attributes
        return [node.inputs[0], node.outputs[0]] if kept and node.inputs[0] is not None else None
    read = [value for value in node.inputs if value is not None]
    numbers = [value for value in read if is_constant(value)]
    if any(value.const_value is None or value.const_value.size != 1 for value in numbers) or len(node.outputs) != 1:
        return None
    data = [value for value in read if not is_constant(value)]
    quantizing = node.op_type in ("QuantizeLinear", "DequantizeLinear")
    if node.domain not in (("", MICROSOFT) if quantizing else ("",)):
        return None
    if (node.op_type in _OF_ONE and len(data) == 1) or node.op_type in _OF_SEVERAL:
        return [*data, node.outputs[0]]
    return None


def _is_conv(node: ir.Node) -> bool:
    return node.op_type == "Conv" and node.domain == ""


def _can_be_longer(value: ir.Value) -> bool:
    """Whether a weight or bias is constant, as floats or as whole bytes behind a DequantizeLinear that it alone has."""
    unpack = value.producer()
    if unpack is None:
        return is_constant(value)
    if unpack.op_type != "DequantizeLinear" or len(value.uses()) != 1 or "block_size" in unpack.attributes:
        return False
    stored = unpack.inputs[0]
    whole = stored is not None and stored.dtype in _STORED and len(stored.uses()) == 1
    return whole and all(read is None or is_constant(read) for read in unpack.inputs)


def _has_several_taps(conv: ir.Node) -> bool:
    shape = static_shape(conv.inputs[1])
    return shape is None or math.prod(shape[2:]) > 1


def _fill(tied: _Tied, filled: int, namer: Namer) -> None:
    added = filled - tied.channels
    for conv in (*tied.makers, *tied.depthwise):
        for index in range(1, len(conv.inputs)):
            _lengthen(conv, index, 0, added, namer)
    for conv in tied.readers:
        _lengthen(conv, 1, 1, added, namer)
    for conv in tied.depthwise:
        conv.attributes["group"] = ir.AttrInt64("group", filled)
    for value in tied.values:
        assert value.shape is not None
        value.shape = ir.Shape([value.shape[0], filled, *value.shape[2:]])


def _lengthen(node: ir.Node, index: int, axis: int, count: int, namer: Namer) -> None:
    """Zeros along an axis of a constant input, or of what a DequantizeLinear makes of one."""
    value = node.inputs[index]
    unpack = value.producer() if value is not None else None
    if value is None or unpack is None:
        _add(node, index, axis, count, 0, namer)
        return
    scale = constant_array(unpack.inputs[1])
    zero = constant_array(input_of(unpack, 2))
    if scale is not None and scale.size > 1 and unpack.attributes.get_int("axis", 1) == axis:
        # Scales of the last channel: onnxruntime compares that of a bias with those of the data and of the weight.
        _add(unpack, 0, axis, count, 0 if zero is None else zero.reshape(-1)[-1], namer)
        _add(unpack, 1, 0, count, scale.reshape(-1)[-1], namer)
        if zero is not None and zero.size > 1:
            _add(unpack, 2, 0, count, zero.reshape(-1)[-1], namer)
    else:
        _add(unpack, 0, axis, count, 0 if zero is None else zero, namer)
    stored = unpack.inputs[0]
    value.shape = stored.shape.copy() if stored is not None and stored.shape is not None else None


def _add(node: ir.Node, index: int, axis: int, count: int, number: AnyArray | int, namer: Namer) -> None:
    """As many numbers, one or one for each along the first axis, along an axis of a constant input, if it is there."""
    value = input_of(node, index)
    array = constant_array(value)
    if value is None or array is None or not isinstance(node.graph, ir.Graph):
        return
    more = np.empty((*array.shape[:axis], count, *array.shape[axis + 1 :]), array.dtype)
    more[...] = np.reshape(number, (-1, *(1,) * (array.ndim - 1)))
    longer = np.concatenate([array, more], axis=axis)
    if len(value.uses()) == 1 and isinstance(value.graph, ir.Graph) and not value.is_graph_output():
        value.const_value = ir.tensor(longer, name=value.name)
        value.shape = ir.Shape(longer.shape)
    else:
        node.replace_input_with(index, set_constant(node.graph, namer, f"{value.name}_filled", longer))
