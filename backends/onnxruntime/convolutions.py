"""What onnxruntime's convolutions cost on one thread, float against integer, as in :mod:`.costs`.

Fits to measured kernels, in nanoseconds per output position, then in units per output element. What a kernel does is
told by onnxruntime's source, for AVX-512 with VNNI or without: convolutions of one group whose channels come in fours,
with 16 or more of them out, have integer kernels that follow a pointer for each tap; all others copy what the taps
read and multiply matrices. Without VNNI 256 convolutions of planes, 144 of lines and 24 of groups were measured (1.32).
With VNNI, channels in fours and narrow convolutions were (1.31); of others the multiply-accumulates are those of VNNI,
but for depthwise ones, and the rest is what was measured without. ``tools/conv_costs.py`` measures them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from onnxq.backends.onnxruntime.processors import QUANTIZE_NS, VNNI, Products
from onnxq.graph.windows import share_inside

__all__ = ["conv_cost"]

_BLOCK = 16
"""Channels that a float kernel computes at once."""
_FOURS = 4
"""Channels of which the kernels that follow pointers take several."""


class _Kernel(NamedTuple):
    """Of a convolution.

    Attributes:
        group: number of groups.
        outputs: channels out, of a group.
        inputs: channels in, of a group.
        dims: taps along each axis.
        side_by_side: whether the taps of a row read elements that lie side by side.
    """

    group: int
    outputs: int
    inputs: int
    dims: tuple[int, ...]
    side_by_side: bool

    @classmethod
    def of(cls, conv: ir.Node) -> _Kernel:
        """Sizes that are not known are 16."""
        weight = conv.inputs[1]
        known = weight.shape if weight is not None and weight.shape is not None else (_BLOCK, _BLOCK)
        dims = [d if isinstance(d, int) else _BLOCK for d in known]
        group = conv.attributes.get_int("group", 1)
        gap = conv.attributes.get_ints("dilations", [1])[-1]
        return cls(group, max(dims[0] // group, 1), dims[1], tuple(dims[2:]), gap == 1)

    @property
    def taps(self) -> int:
        return math.prod(self.dims)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of an output element."""
        return self.inputs * self.taps

    @property
    def padded(self) -> int:
        """Channels out that are computed, of a group: whole blocks."""
        return _up(self.outputs)

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
    def follows_pointers(self) -> bool:
        """Whether its integer kernel follows a pointer for each tap."""
        return self.group == 1 and self.inputs % _FOURS == 0 and self.outputs % _FOURS == 0 and self.outputs >= _BLOCK


def _up(channels: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK


def conv_cost(node: ir.Node, products: Products = VNNI) -> tuple[float, float]:
    """In float and in integers, in units of a QuantizeLinear for each output element."""
    kernel = _Kernel.of(node)
    if kernel.volumes:
        as_float, as_integer = _of_volumes(kernel, products)
    elif kernel.depthwise:
        as_float, as_integer = _depthwise(kernel, products)
    else:
        inside = share_inside(node) if kernel.planes and kernel.taps > 1 else 1.0
        as_float, as_integer = _float(kernel, inside, products), _integer(kernel, products)
    made = kernel.group if kernel.depthwise else kernel.outputs
    return as_float / made / QUANTIZE_NS, as_integer / made / QUANTIZE_NS


def _float(kernel: _Kernel, inside: float, products: Products) -> float:
    """Of planes and lines. Where 16 channels or more come in, in fours, kernels for planes compute blocks of 16 of
    them, of groups that are whole blocks; others copy what the taps read. One block of channels out takes more than
    each of several.

    Kernels for planes leave out taps that lie in the padding, and are half as fast where many do; integer kernels
    multiply with zero points there. Dilated by 12, 24 and 36, 3x3 kernels over 32x32 positions take .94, .48 and .12 of
    the time in float, and all of it in integers.

    Args:
        kernel: the convolution.
        inside: the share of its taps that lie inside of its input.
        products: of the processor.
    """
    inputs, macs, padded, several = kernel.inputs, kernel.macs, kernel.padded, kernel.taps > 1
    alone, written = padded == _BLOCK, 0.22 * kernel.outputs
    coarse = not products.narrow_measured and (kernel.group > 1 or inputs % _FOURS == 0)
    if coarse or (kernel.group == 1 and inputs < _BLOCK):
        took = (0.010 if inputs % _BLOCK == 0 else 0.0155) * macs * padded * min(1.0, 2 * inside) + written
        return took * 1.5 if kernel.group > 1 and several else took
    whole = inputs % _FOURS == 0 if kernel.group == 1 else inputs % _BLOCK == kernel.outputs % _BLOCK == 0
    if kernel.planes and whole:
        took = 0.010 * kernel.taps * _up(inputs) * padded * min(1.0, 2 * inside)
        return took * (1.0 if not alone else 1.5 if several else 1.75) + written
    return 0.0125 * macs * padded * (1.3 if alone else 1.0) + (0.2 * macs if several else 0.0) + written


def _integer(kernel: _Kernel, products: Products) -> float:
    """Of planes and lines. A row of taps that lie side by side is copied at once, but with groups of channels, those
    for one channel in and several out included: there every tap is copied for each group alone.
    """
    inputs, outputs, taps, several = kernel.inputs, kernel.outputs, kernel.taps, kernel.taps > 1
    sums = products.mac * kernel.macs * kernel.padded
    if kernel.follows_pointers:
        return sums + 0.06 * outputs + 5.0 + (1.2 * taps if several else 0.0)
    if inputs == outputs == 1:
        return 4.0 + 0.95 * taps
    in_rows = kernel.side_by_side and kernel.group == 1
    pieces = taps // kernel.dims[-1] if several and in_rows else taps
    if not products.narrow_measured and (kernel.group > 1 or min(inputs, outputs) < _BLOCK):
        return sums + 0.06 * outputs + 5.0 + _copied_with_vnni(kernel, pieces)
    if kernel.group > 1 and not several:
        return sums + 0.25 * outputs + 8.0
    copied = (10.0 if kernel.group > 1 and inputs == 1 else 13.0) * pieces + 0.11 * kernel.macs
    copied += 0.8 * taps if kernel.planes else 0.0
    return sums + 0.5 * outputs + 0.03 * kernel.macs + 13.0 + (copied if several else 0.0)


def _copied_with_vnni(kernel: _Kernel, pieces: int) -> float:
    """Of groups of channels, and of few channels in or out."""
    several = kernel.taps > 1
    if kernel.group > 1:
        return kernel.taps * (8.0 if kernel.inputs == 1 else 5.0) if several else 0.35 * kernel.inputs
    few = 14.0 if kernel.outputs < _BLOCK else 0.0
    if not several:
        return few
    if kernel.inputs % _FOURS == 0:
        return few + 1.2 * kernel.taps
    return few + (9.6 if kernel.side_by_side else 3.2) * pieces


def _of_volumes(kernel: _Kernel, products: Products) -> tuple[float, float]:
    """By measurements of 1.32 with AVX-512 alone.

    Float kernels have no blocks of channels here and copy what each tap reads, 0.37 ns a number: 16, 32, 64 and 128
    channels to 32 by 27 taps take 383, 754, 1497 and 2936 ns a position. Integer kernels follow a pointer a tap where
    they can (258, 344, 495 and 784 ns); else they copy, too, at 17 ns a tap: 24 channels to 12 take 603, to 16 248.
    """
    macs, taps = kernel.macs, kernel.taps
    if kernel.depthwise:
        _, as_integer = _depthwise(kernel, products)
        return (0.17 + 0.5 * taps) * kernel.group, as_integer + 6.4 * taps
    as_float = 0.0155 * macs * kernel.padded + 0.22 * kernel.outputs + (0.37 * macs if taps > 1 else 0.0)
    tap = 11.0 if taps == 1 else 6.0 if kernel.follows_pointers else 17.0
    return as_float, products.mac * macs * kernel.padded + 0.06 * kernel.outputs + 5.0 + tap * taps


def _depthwise(kernel: _Kernel, products: Products) -> tuple[float, float]:
    """Of all channels. Float kernels for planes fill up blocks of 16; what these leave over is slow in integers.

    From one channel to one they follow a pointer for each tap of each position. Channels that do not come in fours are
    computed one by one in float: with 3x3, 162 took 381 ns a position, and 144 took 48; in integers 214 and 94.
    """
    channels, taps = kernel.group, kernel.taps
    if kernel.planes and channels % _FOURS:
        return 0.27 * taps * channels, 10.0 + channels * (0.35 + 0.08 * taps) + 6.5 * taps
    as_float = (0.066 + 0.02 * taps) * _up(channels) if kernel.planes else (0.17 + 0.1 * taps) * channels
    left_over = 0.0 if channels % _BLOCK == 0 else 1.6 if channels % 8 == 0 else 3.3
    return as_float, 7.4 + taps * (products.tap * channels + 0.22 + left_over)
