"""What onnxruntime's convolutions cost on one thread, float against integer, as in :mod:`.costs`.

What a kernel does is told by onnxruntime's source, for AVX-512 with VNNI or without: convolutions of one group whose
channels come in fours, with 16 or more of them out, have integer kernels that follow a pointer for each tap; all others
copy what the taps read and multiply matrices. Float kernels for planes compute blocks of 16 channels; others copy.
How long each takes is linear in a few sizes, by the figures in :mod:`.processors`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import onnx_ir as ir

from onnxq.backends.onnxruntime.channels import filled_up
from onnxq.backends.onnxruntime.kernels import BLOCK, FOURS
from onnxq.backends.onnxruntime.phases import phases_of
from onnxq.backends.onnxruntime.processors import NEAR, VNNI, Depthwise, Linear, Products
from onnxq.graph.windows import share_inside, share_whole

__all__ = ["UNKNOWN", "conv_cost", "elements_of", "groups_together", "transposed_cost"]

UNKNOWN = 16
"""Stands for a size that is not known."""

_SQUARES = ((3, 3), (5, 5), (7, 7))
"""Depthwise kernels that are faster in float than others."""


def elements_of(sizes: Iterable[int | ir.SymbolicDim]) -> int:
    """How many elements there are with these sizes, as far as they are known."""
    return math.prod(size if isinstance(size, int) else UNKNOWN for size in sizes)


class _Kernel(NamedTuple):
    """Of a convolution.

    Attributes:
        group: number of groups.
        outputs: channels out, of a group.
        inputs: channels in, of a group.
        dims: taps along each axis.
        side_by_side: whether the taps of a row read elements that lie side by side.
        steps: elements of the input to a position of the output, of a channel.
        row: positions of a row of the output; as many as of a column where it is not known.
        made: channels out, of all groups, without those of zeros that are added.
    """

    group: int
    outputs: int
    inputs: int
    dims: tuple[int, ...]
    side_by_side: bool
    steps: int
    row: float
    made: int

    @classmethod
    def of(cls, conv: ir.Node, elements: float) -> _Kernel:
        """Of a node whose output has so many elements."""
        weight = conv.inputs[1]
        known = weight.shape if weight is not None and weight.shape is not None else ()
        dims = [d if isinstance(d, int) else UNKNOWN for d in known] if len(known) > 2 else [UNKNOWN, UNKNOWN, 1, 1]
        group, channels = conv.attributes.get_int("group", 1), max(dims[0], 1)
        if group == 1:
            dims[:2] = filled_up(conv.outputs[0]) or dims[0], filled_up(conv.inputs[0]) or dims[1]
        elif (group, 1) == (dims[0], dims[1]) and (filled := filled_up(conv.outputs[0])):
            group = dims[0] = filled
        gap = conv.attributes.get_ints("dilations", [1])[-1]
        steps = math.prod(conv.attributes.get_ints("strides", [1]))
        made = conv.outputs[0].shape
        last = made[-1] if made is not None and len(made) > 2 else None
        row = last if isinstance(last, int) else (elements / channels) ** (1 / (len(dims) - 2))
        taps = tuple(max(d, 1) for d in dims[2:])
        return cls(group, max(dims[0] // group, 1), dims[1], taps, gap == 1, steps, max(row, 1.0), channels)

    @property
    def taps(self) -> int:
        return math.prod(self.dims)

    @property
    def several(self) -> bool:
        """Whether there are several taps."""
        return self.taps > 1

    @property
    def terms(self) -> int:
        """Of the sum that an output element is."""
        return self.inputs * self.taps

    @property
    def depthwise(self) -> bool:
        return self.group > 1 and self.inputs == self.outputs == 1

    @property
    def planes(self) -> bool:
        return len(self.dims) == 2

    @property
    def volumes(self) -> bool:
        return len(self.dims) > 2

    @property
    def in_blocks(self) -> bool:
        """Whether its float kernel computes blocks of channels, in and out."""
        if self.group == 1:
            return self.planes and self.inputs % FOURS == 0
        return self.planes and self.inputs % BLOCK == self.outputs % BLOCK == 0

    @property
    def doubles(self) -> bool:
        """Whether it has a float kernel of its own, made for MobileCLIP: two channels of each, 7x7, a stride of 2."""
        return self.group > 1 and (self.inputs, self.outputs, self.dims, self.steps) == (1, 2, (7, 7), 4)

    @property
    def follows_pointers(self) -> bool:
        """Whether its integer kernel follows a pointer for each tap."""
        return self.group == 1 and self.inputs % FOURS == 0 and self.outputs % FOURS == 0 and self.outputs >= BLOCK

    @property
    def pieces(self) -> int:
        """That are copied at once: a row of taps side by side, but every tap for each group of channels alone."""
        return self.taps // self.dims[-1] if self.side_by_side and self.group == 1 else self.taps

    def joined(self, count: int) -> _Kernel:
        """The same with so many groups in one, whose weights are 0 for the channels of the others."""
        return self._replace(group=self.group // count, outputs=self.outputs * count, inputs=self.inputs * count)

    @property
    def numbers(self) -> int:
        """Of weights."""
        return self.terms * self.outputs * self.group

    def takes(self, cost: Linear, terms: float | None = None, share: float = 1.0) -> float:
        """Nanoseconds for a position of a group.

        Args:
            cost: what the sizes count for.
            terms: of each sum; those of the kernel without it.
            share: of the multiply-accumulates that are computed.
        """
        terms = self.terms if terms is None else terms
        padded = _up(self.outputs)
        took = cost.padded * terms * padded * share * (cost.alone if padded == BLOCK else 1.0)
        copied = cost.term + cost.apart * (self.steps > 1) + cost.row / self.row
        took += (cost.mac * self.outputs + copied) * terms
        took += cost.output * self.outputs + cost.fixed
        return took + cost.tap * self.taps + cost.piece * self.pieces


def _up(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def conv_cost(node: ir.Node, elements: float, products: Products = VNNI) -> tuple[float, float]:
    """In float and in integers, in the unit of the table for each element of the output, of so many."""
    kernel = _Kernel.of(node, elements)
    positions = elements / kernel.made
    if kernel.depthwise:
        as_float, as_integer = (
            each * positions + weights * _far(kernel)
            for each, weights in zip(_depthwise(kernel, share_whole(node), products), products.weights, strict=True)
        )
    else:
        as_float = _float(kernel, node, products) * kernel.group * positions + products.weights[0] * _far(kernel)
        if kernel.group > 1 and kernel.in_blocks:
            as_float += products.group * kernel.group
        as_integer = _integer_call(kernel.joined(_together(kernel, positions, products)), positions, products)
    made = elements * products.unit
    return as_float / made, (as_integer + products.call) / made


def transposed_cost(node: ir.Node, elements: float, products: Products = VNNI) -> tuple[float, float]:
    """Of a transposed convolution, in integers as the convolution that makes its phases, and of putting them together.

    In float it multiplies matrices and adds up what falls on the same positions.
    """
    weight, phases = node.inputs[1], phases_of(node)
    shape = weight.shape if weight is not None and weight.shape is not None else ()
    inputs, outputs, *taps = [d if isinstance(d, int) else UNKNOWN for d in shape] or [UNKNOWN] * 4
    positions = elements / outputs / math.prod(node.attributes.get_ints("strides", [1]))
    placed = outputs * math.prod(taps) * positions
    as_float = (products.transposed[0] * inputs + products.transposed[1]) * placed
    if phases is None:
        return as_float / elements / products.unit, as_float / elements / products.unit
    kernel = _Kernel(1, outputs * phases.many, inputs, phases.taps, True, 1, 1.0, outputs)
    as_integer = _integer_call(kernel, positions, products) + products.call + products.placed * elements
    return as_float / elements / products.unit, as_integer / elements / products.unit


def groups_together(node: ir.Node, elements: float, products: Products = VNNI) -> int:
    """How many groups of an integer convolution are best computed as one, 1 where it is fastest as it is.

    Its kernel copies what the taps read for each group and position, and multiplies matrices so small that it takes
    longer over the copying. Products with zeros change no sum. Of 104 channels in groups of 8, 28x28 positions and 3x3
    taps take 301 µs, as one group 166; of 128 in groups of 4, 56x56, 2,980 µs, in groups of 32, 580.
    """
    kernel = _Kernel.of(node, elements)
    return _together(kernel, elements / kernel.made, products)


def _together(kernel: _Kernel, positions: float, products: Products) -> int:
    """Not groups of an odd number of channels, but one: without VNNI, other weights would be multiplied in pairs than
    those whose sum was looked at, see :mod:`onnxq.calibration.reduced`.
    """
    if kernel.group == 1 or kernel.depthwise or kernel.volumes or kernel.inputs % 2 > (kernel.inputs == 1):
        return 1
    counts = (count for count in range(1, kernel.group + 1) if kernel.group % count == 0)
    return min(counts, key=lambda count: _integer_call(kernel.joined(count), positions, products))


def _integer_call(kernel: _Kernel, positions: float, products: Products) -> float:
    """Nanoseconds for all positions and groups, without what every call takes."""
    return _integer(kernel, products) * kernel.group * positions + products.weights[1] * _far(kernel)


def _far(kernel: _Kernel) -> int:
    """Weights that come from afar."""
    return kernel.numbers if kernel.numbers > NEAR else 0


def _float(kernel: _Kernel, node: ir.Node, products: Products) -> float:
    """Where 16 channels or more come in, in fours, kernels for planes compute blocks of 16 of them, of groups that are
    whole blocks; others copy what the taps read. One block of channels out takes more than each of several.

    Kernels for planes leave out taps that lie in the padding, and are half as fast where many do; integer kernels
    multiply with zero points there. Dilated by 12, 24 and 36, 3x3 kernels over 32x32 positions take .94, .48 and .12 of
    the time in float, and all of it in integers.
    """
    if kernel.volumes:
        return kernel.takes(products.copies_volumes[kernel.several])
    share = min(1.0, 2 * share_inside(node)) if kernel.planes and kernel.several else 1.0
    if kernel.group == 1 and kernel.inputs < BLOCK:
        took = kernel.takes((products.few if kernel.planes else products.few_lines)[kernel.several], share=share)
        enters = kernel.planes and node.inputs[0] is not None and node.inputs[0].producer() is None
        return took + products.entry * kernel.inputs * kernel.steps * enters
    if kernel.doubles:
        return kernel.takes(products.doubling)
    if kernel.in_blocks:
        return kernel.takes(products.blocks[kernel.several], kernel.taps * _up(kernel.inputs), share)
    return kernel.takes(products.copies[kernel.several])


def _integer(kernel: _Kernel, products: Products) -> float:
    several, volumes = kernel.several, kernel.volumes
    if kernel.follows_pointers:
        return kernel.takes((products.pointers_volumes if volumes else products.pointers)[several])
    if volumes:
        return kernel.takes(products.gathers_volumes[several])
    if kernel.inputs == kernel.outputs == 1:
        return kernel.takes(products.single)
    if kernel.group > 1:
        return kernel.takes(products.from_one if several and kernel.inputs == 1 else products.groups[several])
    return kernel.takes((products.gathers if kernel.planes else products.gathers_lines)[several])


def _depthwise(kernel: _Kernel, whole: float, products: Products) -> tuple[float, float]:
    """Of all channels. Float kernels for planes fill up blocks of 16, but for channels that do not come in fours, which
    they compute one by one; where windows reach into the padding they are slow.

    Integer kernels follow a pointer for each tap of each position. Channels left over of blocks make all slow.
    """
    channels, taps = kernel.group, kernel.taps

    def takes(cost: Depthwise, channels: int, whole: float = 1.0) -> float:
        each = whole * (cost.channel + cost.both * taps) + (1.0 - whole) * (cost.edge + cost.edge_both * taps)
        each += cost.read * kernel.steps
        return cost.fixed + cost.tap * taps + each * channels

    left_over = next(index for index, of in enumerate((BLOCK, BLOCK // 2, FOURS, 1)) if channels % of == 0)
    as_integer = takes(products.integer[left_over], channels) + products.left * taps * (channels % (BLOCK // 2))
    if not kernel.planes and not kernel.volumes:
        return takes(products.lines, channels), as_integer
    as_integer += products.plane
    if kernel.volumes:
        return takes(products.volumes, channels), as_integer + products.volume_tap * taps
    if channels % FOURS:
        return takes(products.planes_odd, channels, whole), as_integer
    compiled = kernel.dims in _SQUARES
    return takes(products.squares if compiled else products.planes, _up(channels), whole), as_integer
