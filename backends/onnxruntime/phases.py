"""Transposed convolutions as convolutions: onnxruntime 1.32 has an integer kernel of these alone.

With a stride of s, each of the s positions of a line, or s x s of a plane, that an element of the input becomes, a
phase, is what a convolution with some of the taps gives there. One convolution makes the channels of all phases, with
weights of zero where a phase has no tap, and they are put side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.kernels import quantizer_behind
from onnxq.backends.onnxruntime.side_by_side import Writer, put_side_by_side, sizes_of
from onnxq.graph.edits import remove_nodes
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, input_of, is_constant, only_reader, static_shape

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["WHY_STORED", "Phases", "in_phases", "phases_of", "write_phases"]

_AXES = (1, 2)
WHY_STORED = (
    "in integers only as a Conv: of lines or planes and one group, of an even number of channels or with one tap to "
    "each element, with a stride of 2 or more and an output that is a whole number of strides long"
)


class Phases(NamedTuple):
    """Of a transposed convolution.

    Attributes:
        step: its stride, along each axis.
        firsts: the first element, along each axis and counted from the one that becomes the phases, that any reads.
        lasts: the last one.
        beyond: as many elements of the output as these make lie behind those that the input becomes, along each axis.
    """

    step: int
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    beyond: tuple[int, ...]

    @property
    def taps(self) -> tuple[int, ...]:
        """Of the convolution, along each axis."""
        return tuple(last - first + 1 for first, last in zip(self.firsts, self.lasts, strict=True))

    @property
    def ends(self) -> tuple[int, ...]:
        """Elements that are padded behind the input, along each axis."""
        return tuple(last + more for last, more in zip(self.lasts, self.beyond, strict=True))

    @property
    def many(self) -> int:
        """How many there are."""
        return int(self.step ** len(self.firsts))


def in_phases(node: ir.Node) -> str | None:
    """A ConvTranspose of lines or planes, of one group, whose output is a whole number of strides long."""
    return None if phases_of(node) is not None and _may_be_known(node) else WHY_STORED


def _may_be_known(node: ir.Node) -> bool:
    """Whether the bias of a ConvTranspose is no result of the model's, nor its caller's."""
    bias = input_of(node, 2)
    return bias is None or is_constant(bias)


def phases_of(node: ir.Node) -> Phases | None:
    """The phases of a ConvTranspose; None where it has several groups, dilations, or a size of its own."""
    shape, get = static_shape(node.inputs[1]), node.attributes
    axes = len(shape) - 2 if shape is not None else 0
    if shape is None or axes not in _AXES:
        return None
    ones, zeros = (1,) * axes, (0,) * axes
    steps, pads, more = (
        get.get_ints(name, default)
        for name, default in (("strides", ones), ("pads", zeros * 2), ("output_padding", zeros))
    )
    plain = get.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID") and "output_shape" not in get
    if not plain or get.get_int("group", 1) != 1 or set(get.get_ints("dilations", ones)) != {1}:
        return None
    if len(set(steps)) > 1 or steps[0] < 2:
        return None
    step, firsts, lasts, beyond = steps[0], [], [], []
    for axis in range(axes):
        size, begin = shape[2 + axis], pads[axis]
        behind = size + more[axis] - step - begin - pads[axes + axis]
        if behind % step:
            return None
        beyond.append(behind // step)
        firsts.append(min(-((size - 1 - phase - begin) // step) for phase in range(step)))
        lasts.append(max((phase + begin) // step for phase in range(step)))
    found = Phases(step, tuple(firsts), tuple(lasts), tuple(beyond))
    if max(found.firsts) > 0 or min(found.ends) < 0:
        return None
    # Without VNNI neighbours are multiplied in pairs, which would be others than those whose sum was looked at.
    return found if shape[0] % 2 == 0 or set(found.taps) == {1} else None


def write_phases(model: ir.Model, plan: Plan) -> None:
    """Write each ConvTranspose between quantizers of 8 bits, its weights among them, as a Conv.

    Of the numbers none changes, but that of floats without optimizations is the order in which products are added. The
    Conv has the node's name.

    Args:
        model: a rendered QDQ model, changed in place.
        plan: where it is quantized.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        if node.op_type != "ConvTranspose" or node.domain != "" or node.name not in plan.quantized:
            continue
        phases, quantizer = phases_of(node), quantizer_behind(node)
        if phases is not None and quantizer is not None and _has_constants(node):
            _Writing(node, phases, quantizer, namer).write()


def _has_constants(node: ir.Node) -> bool:
    """Whether the quantized weights of a ConvTranspose are constant, and its bias is."""
    unpack = node.inputs[1].producer() if node.inputs[1] is not None else None
    bias = input_of(node, 2)
    maker = bias.producer() if bias is not None else None
    given = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else bias
    known = unpack is not None and constant_array(unpack.inputs[0]) is not None
    return known and (given is None or constant_array(given) is not None)


class _Writing:
    """One transposed convolution, in front of a quantizer."""

    def __init__(self, node: ir.Node, phases: Phases, quantizer: ir.Node, namer: Namer) -> None:
        self._node, self._phases, self._quantizer, self._namer = node, phases, quantizer, namer
        self._writer = Writer(node, str(node.name), str(node.outputs[0].name), namer)

    def write(self) -> None:
        node, quantizer, writer = self._node, self._quantizer, self._writer
        made, function = node.outputs[0], only_reader(node.outputs[0])
        value, name = self._conv(), str(made.name)
        if function is not None and function is not quantizer:
            function.replace_input_with(0, value)
            inner, value = value.shape, function.outputs[0]
            name = str(value.name)
            value.name, value.shape = self._namer.fresh(f"{name}_phases"), inner
        writer.before, writer.stem = quantizer, name
        value = put_side_by_side(writer, value, self._phases.step, quantizer)
        quantizer.replace_input_with(0, value)
        remove_nodes([node])
        made.name, value.name = None, name

    def _conv(self) -> ir.Value:
        node, phases = self._node, self._phases
        batch, _, *places = sizes_of(node.inputs[0], 2 + len(phases.firsts))
        pads = (*(-first for first in phases.firsts), *phases.ends)
        inputs = [node.inputs[0], self._weight(), *([self._bias()] if len(node.inputs) > 2 and node.inputs[2] else [])]
        channels = static_shape(inputs[1])
        longer = [place and place + more for place, more in zip(places, phases.beyond, strict=True)]
        sizes = (batch, channels[0] if channels else None, *longer)
        value = self._writer.put("Conv", inputs, sizes, node.outputs[0].type, kernel_shape=phases.taps, pads=pads)
        maker = value.producer()
        assert maker is not None
        maker.name, node.name = node.name, self._namer.node(f"{node.name}_transposed")
        return value

    def _weight(self) -> ir.Value:
        """From (C, M, ...) to (phases * M, C, ...), with zeros for taps that a phase has not."""
        unpack = self._unpack(1)
        array, scale, zero = (constant_array(value) for value in (*unpack.inputs, None)[:3])
        assert array is not None and scale is not None
        step, taps, axes = self._phases.step, self._phases.taps, len(self._phases.taps)
        inputs, outputs = array.shape[:2]
        wide = np.zeros((step,) * axes + (outputs, inputs, *taps), array.dtype)
        if zero is not None:
            wide[...] = zero.reshape((-1,) + (1,) * (1 + axes))
        begins, every = self._node.attributes.get_ints("pads", (0,) * (2 * axes))[:axes], slice(None)
        for place in np.ndindex((step,) * axes + taps):
            phase, tap = place[:axes], place[axes:]
            at = tuple(
                p + begin - step * (first + t)
                for p, t, begin, first in zip(phase, tap, begins, self._phases.firsts, strict=True)
            )
            if all(0 <= index < size for index, size in zip(at, array.shape[2:], strict=True)):
                to, of = (*phase, every, every, *tap), (every, every, *at)
                wide[to] = array[of].T
        return self._dequantize(unpack, wide.reshape(-1, inputs, *taps), "weight")

    def _bias(self) -> ir.Value:
        value = self._node.inputs[2]
        unpack = value.producer() if value is not None else None
        if unpack is None:
            array = constant_array(value)
            assert array is not None
            return self._writer.constant("bias", np.tile(array, self._phases.many))
        array = constant_array(unpack.inputs[0])
        assert array is not None
        return self._dequantize(unpack, np.tile(array, self._phases.many), "bias")

    def _dequantize(self, unpack: ir.Node, array: AnyArray, what: str) -> ir.Value:
        """Integers behind a DequantizeLinear like another, with the scales of its channels for each phase."""
        numbers = [constant_array(value) for value in unpack.inputs[1:]]
        tiled = [np.tile(n, self._phases.many) if n is not None and n.size > 1 else n for n in numbers]
        inputs = [self._writer.constant(what, array)]
        inputs += [
            self._writer.constant(f"{what}_{name}", number)
            for name, number in zip(("scale", "zero_point"), tiled, strict=False)
            if number is not None
        ]
        floats, domain = unpack.outputs[0].type, unpack.domain
        if tiled[0] is None or tiled[0].size == 1:
            return self._writer.put("DequantizeLinear", inputs, array.shape, floats, domain=domain)
        return self._writer.put("DequantizeLinear", inputs, array.shape, floats, domain=domain, axis=0)

    def _unpack(self, index: int) -> ir.Node:
        value = self._node.inputs[index]
        maker = value.producer() if value is not None else None
        assert maker is not None
        return maker
