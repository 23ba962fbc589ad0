"""What LiteRT's kernels cost on one thread, float against integer, for each element of the output, in nanoseconds.

Measured with ai-edge-litert 2.3.0 on an AMD EPYC of family 26 (AVX-512 with VNNI): an operator alone, on tensors of
some 200,000 elements. Most are XNNPACK's. What XNNPACK has in floats alone is many times as slow in integers there:
products of two activations, Softmax, PRelu, mean pools. What it has in both is taken to be twice as fast in integers at
least: so it is where most of these files run, on processors with vectors of 128 bits and on NPUs, of which none was
measured. Not measured, but taken to be alike: transposed convolutions (as convolutions), and what only moves numbers
in Expand, Tile, Gather, DepthToSpace and SpaceToDepth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.values import constant_array, static_shape
from onnxq.op_rule import Cost

__all__ = ["COSTS", "DEQUANTIZE", "NODE", "QUANTIZE"]

QUANTIZE = 0.05
DEQUANTIZE = 0.05
NODE = 100.0
"""Of a call of a kernel, whatever its size."""
_UNKNOWN = 64
"""Terms of a sum, where sizes are not known."""
_DENSE, _DENSE_ELEMENT = (0.0075, 0.002), (0.05, 0.1)
_DEPTHWISE, _DEPTHWISE_ELEMENT = (0.022, 0.02), 0.05
_ROWS, _ROW = (0.0078, 0.0021), (0.064, 0.0085)
"""Of a matrix with a constant one: for each term with many rows, with one."""
_PRODUCT = (0.01, 0.115)


def _convolved(node: ir.Node, _: float) -> tuple[float, float]:
    """By the terms that become one number."""
    kernel = static_shape(node.inputs[1])
    if kernel is None:
        return _each(_UNKNOWN, _DENSE, _DENSE_ELEMENT)
    data = static_shape(node.inputs[0])
    terms = math.prod(kernel[1:])
    depthwise = kernel[1] == 1 and data is not None and data[1] > 1
    if depthwise:
        return _each(terms, _DEPTHWISE, (_DEPTHWISE_ELEMENT, _DEPTHWISE_ELEMENT))
    return _each(terms, _DENSE, _DENSE_ELEMENT)


def _transposed(node: ir.Node, elements: float) -> tuple[float, float]:
    """By all terms, spread over the result."""
    kernel, data = static_shape(node.inputs[1]), static_shape(node.inputs[0])
    terms = math.prod(kernel) * math.prod(data) / data[1] / elements if kernel and data and data[1] else _UNKNOWN
    return _each(terms, _DENSE, _DENSE_ELEMENT)


def _multiplied(node: ir.Node, _: float) -> tuple[float, float]:
    """By the terms of a number, which cost more where one row leaves each weight in use once."""
    weight, made = static_shape(node.inputs[1]), static_shape(node.outputs[0])
    if weight is None:
        return _each(_UNKNOWN, _ROWS, _DENSE_ELEMENT)
    turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
    terms = weight[-1 if turned else 0]
    alone = made is not None and math.prod(made[:-1]) == 1
    return _each(terms, _ROW if alone else _ROWS, _DENSE_ELEMENT)


def _of_two(node: ir.Node, _: float) -> tuple[float, float]:
    """By the terms of a number."""
    left = static_shape(node.inputs[0])
    return _each(left[-1] if left else _UNKNOWN, _PRODUCT, (0.0, 0.0))


def _sloped(node: ir.Node, _: float) -> tuple[float, float]:
    """As LeakyRelu, or as QUANTIZE, MUL and MAXIMUM; XNNPACK has no PRELU of integers."""
    slopes = constant_array(node.inputs[1])
    if slopes is None or np.any(slopes > 1):
        return 0.07, 6.2
    return 0.07, 0.11 if np.any(slopes != slopes.reshape(-1)[:1]) else 0.035


def _averaged(node: ir.Node, _: float) -> tuple[float, float]:
    """By the window."""
    return _each(math.prod(node.attributes.get_ints("kernel_shape", (3, 3))), (0.05, 0.77), (0.0, 0.0))


def _over_all(node: ir.Node, elements: float) -> tuple[float, float]:
    """By what becomes one number."""
    data = static_shape(node.inputs[0])
    count = math.prod(data) / elements if data else _UNKNOWN
    return _each(count, (0.03, 0.03), (0.0, 0.0))


def _each(terms: float, term: tuple[float, float], element: tuple[float, float]) -> tuple[float, float]:
    return element[0] + term[0] * terms, element[1] + term[1] * terms


_EACH: Mapping[str, tuple[float, float] | Cost] = {
    "Conv": _convolved,
    "ConvTranspose": _transposed,
    "Gemm": _multiplied,
    "MatMul": _multiplied,
    "MatMul:product": _of_two,
    "Add": (0.07, 0.08),
    "Sub": (0.07, 0.08),
    "Mul": (0.07, 0.04),
    "Max": (0.07, 0.02),
    "Min": (0.07, 0.02),
    "Relu": (0.07, 0.03),
    "Clip": (0.07, 0.05),
    "LeakyRelu": (0.07, 0.04),
    "Elu": (0.12, 0.04),
    "HardSwish": (0.07, 0.14),
    "HardSigmoid": (0.28, 0.1),
    "Gelu": (0.13, 0.2),
    "Exp": (0.1, 0.2),
    "Abs": (0.07, 2.3),
    "PRelu": _sloped,
    "Sigmoid": (0.1, 0.04),
    "Tanh": (0.1, 0.04),
    "Softmax": (0.29, 1.8),
    "AveragePool": _averaged,
    "GlobalAveragePool": _over_all,
    "ReduceMean": _over_all,
    "ReduceSum": _over_all,
    "ReduceMax": _over_all,
    "ReduceMin": _over_all,
    "GlobalMaxPool": _over_all,
    "MaxPool": (0.36, 0.12),
    "Resize": (0.2, 0.2),
    "Pad": (0.15, 0.14),
    "Concat": (0.08, 0.03),
    "Reshape": (0.0, 0.0),
    "Flatten": (0.0, 0.0),
    "Squeeze": (0.0, 0.0),
    "Unsqueeze": (0.0, 0.0),
    "Identity": (0.0, 0.0),
    "Transpose": (0.08, 0.03),
    "Slice": (0.08, 0.06),
    "Split": (0.07, 0.05),
    "Expand": (0.1, 0.1),
    "Tile": (0.1, 0.1),
    "Gather": (0.1, 0.1),
    "Gather:constant": (0.1, 0.1),
    "DepthToSpace": (0.1, 0.1),
    "SpaceToDepth": (0.1, 0.1),
}
"""Row of the table → float and integer, before integers are taken to be fast."""
_IN_FLOAT = frozenset({"Abs", "AveragePool", "Exp", "Gelu", "MatMul:product", "PRelu", "Softmax"})
"""Rows of which XNNPACK has no integer kernel."""


def _at_least_twice(cost: tuple[float, float] | Cost) -> Cost:
    """A cost, that in integers half of that in floats at most."""

    def costs(node: ir.Node, elements: float) -> tuple[float, float]:
        as_float, as_integer = cost(node, elements) if callable(cost) else cost
        return as_float, min(as_integer, as_float / 2)

    return costs


COSTS: Mapping[str, tuple[float, float] | Cost] = {
    name: cost if name in _IN_FLOAT else _at_least_twice(cost) for name, cost in _EACH.items()
}
"""Row of the table → its costs."""
