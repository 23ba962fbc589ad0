"""What onnxruntime's kernels cost on one thread, float against integer, in units of a QuantizeLinear for each element.

Fits to measured kernels of onnxruntime 1.31 on x86-64 with AVX512-VNNI (``tools/op_costs.py`` has those of the other
operators); and of 1.32 with AVX-512 alone, from its profiles of 14 convolutions and 7 matrix products: against a float
kernel, an integer one takes half as long again (depthwise) to nearly three times as long without VNNI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from onnxq.graph.values import only_reader
from onnxq.graph.windows import share_inside
from onnxq.op_rule import Cost

__all__ = ["WITHOUT_VNNI", "conv_cost", "matmul_cost", "mean_cost", "mul_cost", "sigmoid_cost"]

_QUANTIZE_NS = 0.22
"""Nanoseconds a QuantizeLinear takes for an element: the unit of all costs."""
_PLANES = 4
"""Dimensions of the weight of a convolution of planes."""


@dataclass(frozen=True)
class _Products:
    """What differs between processors.

    Attributes:
        mac: nanoseconds of a multiply-accumulate of an integer convolution, on the processor of the other figures.
        tap: of one tap and channel of a depthwise one.
        row: units of an output element of a matrix product.
        term: of each term of its sum.
    """

    mac: float
    tap: float
    row: float
    term: float


_WITH_VNNI = _Products(mac=0.0029, tap=0.026, row=0.3, term=0.011)
_WITHOUT = _Products(mac=0.0062, tap=0.040, row=1.5, term=0.0305)


def conv_cost(node: ir.Node, products: _Products = _WITH_VNNI) -> tuple[float, float]:
    """A fit to measured kernels, in nanoseconds per output position, then per output element.

    Both kinds of kernels compute blocks of 16 output channels; float ones are slower where the input channels do not
    fill blocks. Integer kernels copy what each kernel tap reads, which is slow for three channels: first layers of
    image models with kernels of 3x3 are faster in float. A row of the kernel is copied at once, of planes and lines
    whose columns lie side by side: of three channels and kernels of 3x3, 5x5 and 7x7 it takes 3.8, 3.5 and 3.5 ns, and
    a line of 127 taps twice as long as one of 7. With groups of more channels, those for one channel in and several out
    included, every kernel tap is copied for each group alone, and float kernels are slower as well. From one channel to
    one they follow a pointer for each tap of each position: 7, 39 and 127 taps take 9, 39 and 120 ns. Volumes have
    kernels of their own (:func:`_volume_cost`).

    Float kernels for planes leave out taps that lie in the padding, and are half as fast where many do; integer kernels
    multiply with zero points there. Dilated by 12, 24 and 36, 3x3 kernels over 32x32 positions take .94, .48 and .12 of
    the time in float, and all of it in integers.
    """
    weight = node.inputs[1]
    dims = [d if isinstance(d, int) else 16 for d in weight.shape] if weight is not None and weight.shape else [16, 16]
    group = node.attributes.get_int("group", 1)
    outputs, inputs, taps = max(dims[0] // group, 1), dims[1], math.prod(dims[2:])
    if len(dims) > _PLANES:
        return _volume_cost(group, outputs, inputs, taps, products)
    if inputs == outputs == 1 and group > 1:
        return _depthwise_cost(group, taps, products, planes=len(dims) == _PLANES)
    macs = inputs * taps
    padded = -(-outputs // 16) * 16
    as_float = (0.010 if inputs % 16 == 0 else 0.0155) * macs * padded + 0.22 * outputs
    if len(dims) == _PLANES and taps > 1:
        as_float *= min(1.0, 2 * share_inside(node))
    as_integer = products.mac * macs * padded + 0.06 * outputs + 5.0
    if group > 1:
        as_float *= 1.5 if taps > 1 else 1.0
        as_integer += taps * (8.0 if inputs == 1 else 5.0) if taps > 1 else 0.35 * inputs
    elif taps > 1:
        as_integer += 1.2 * taps if inputs % 4 == 0 else 9.6 * math.prod(dims[2:-1]) if _in_rows(node) else 3.2 * taps
    if outputs < 16 and group == 1:
        as_integer += 14.0
    if inputs == outputs == 1:
        as_integer = 4.0 + 0.95 * taps
    return as_float / outputs / _QUANTIZE_NS, as_integer / outputs / _QUANTIZE_NS


def _volume_cost(group: int, outputs: int, inputs: int, taps: int, products: _Products) -> tuple[float, float]:
    """Of a convolution of volumes, as :func:`conv_cost` gives it, by measurements of 1.32 with AVX-512 alone.

    Float kernels have no blocks of channels here and copy what each tap reads, 0.37 ns a number: 16, 32, 64 and 128
    channels to 32 by 27 taps take 383, 754, 1497 and 2936 ns a position. Integer kernels follow a pointer a tap where
    the channels come in fours and 16 or more go out (258, 344, 495 and 784 ns); else they copy, too, at 17 ns a tap:
    24 channels to 12 take 603, to 16 248.
    """
    if inputs == outputs == 1 and group > 1:
        _, as_integer = _depthwise_cost(group, taps, products, planes=False)
        return (0.17 + 0.5 * taps) / _QUANTIZE_NS, as_integer + 6.4 * taps / group / _QUANTIZE_NS
    macs, padded = inputs * taps, -(-outputs // 16) * 16
    copied = taps > 1
    as_float = 0.0155 * macs * padded + 0.22 * outputs + (0.37 * macs if copied else 0.0)
    pointers = group == 1 and inputs % 4 == 0 and outputs >= 16
    tap = (6.0 if pointers else 17.0) if copied else 11.0
    as_integer = products.mac * macs * padded + 0.06 * outputs + 5.0 + tap * taps
    return as_float / outputs / _QUANTIZE_NS, as_integer / outputs / _QUANTIZE_NS


def _in_rows(conv: ir.Node) -> bool:
    """Whether a row of the kernel reads elements that lie side by side."""
    return conv.attributes.get_ints("dilations", [1])[-1] == 1


def _depthwise_cost(channels: int, taps: int, products: _Products, *, planes: bool) -> tuple[float, float]:
    """Float kernels for planes fill up blocks of 16 channels; what such blocks leave over is slow in integers."""
    blocks = -(-channels // 16) * 16
    as_float = (0.066 + 0.02 * taps) * blocks if planes else (0.17 + 0.1 * taps) * channels
    left_over = 0.0 if channels % 16 == 0 else 1.6 if channels % 8 == 0 else 3.3
    as_integer = 7.4 + taps * (products.tap * channels + 0.22 + left_over)
    return as_float / channels / _QUANTIZE_NS, as_integer / channels / _QUANTIZE_NS


def matmul_cost(node: ir.Node, products: _Products = _WITH_VNNI) -> tuple[float, float]:
    """By the inner dimension."""
    weight = node.inputs[1]
    inner = 64
    if weight is not None and weight.shape is not None and len(weight.shape) >= 2:
        position = -1 if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 else -2
        dim = weight.shape[position]
        inner = dim if isinstance(dim, int) else inner
    return 0.045 * inner, products.row + products.term * inner


def mean_cost(node: ir.Node) -> tuple[float, float]:
    """By the elements that become one."""
    data = node.inputs[0]
    dims = data.shape[2:] if data is not None and data.shape is not None else (16, 16)
    area = math.prod(d if isinstance(d, int) else 16 for d in dims)
    return 18.0 + 0.36 * area, 60.0 + 0.2 * area


def sigmoid_cost(node: ir.Node) -> tuple[float, float]:
    """In a SiLU onnxruntime computes it and the product in one float kernel; in integers each is a table or a loop."""
    return (0.6, 1.3) if _of_silu(node) else (1.5, 1.05)


def mul_cost(node: ir.Node) -> tuple[float, float]:
    makers = [value.producer() for value in node.inputs if value is not None]
    return (0.7, 1.2) if any(m is not None and m.op_type == "Sigmoid" and _of_silu(m) for m in makers) else (1.4, 1.1)


def _of_silu(sigmoid: ir.Node) -> bool:
    reader = only_reader(sigmoid.outputs[0])
    return reader is not None and reader.op_type == "Mul" and sigmoid.inputs[0] in reader.inputs


WITHOUT_VNNI: Mapping[Cost, Cost] = {
    conv_cost: partial(conv_cost, products=_WITHOUT),
    matmul_cost: partial(matmul_cost, products=_WITHOUT),
}
"""What takes the place of the costs of layers where sums of products overflow."""
