"""What onnxruntime's kernels cost on one thread, float against integer, in units of a QuantizeLinear for each element.

Fits to measured kernels of onnxruntime 1.31 on x86-64 with AVX512-VNNI (``tools/op_costs.py`` has those of the other
operators), and of 1.32 with AVX-512 alone, from its profiles of 7 matrix products: against a float kernel, an integer
one takes nearly three times as long without VNNI. Those of convolutions are in :mod:`.convolutions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import onnx_ir as ir

from onnxq.backends.onnxruntime.convolutions import conv_cost
from onnxq.backends.onnxruntime.processors import NO_VNNI, VNNI, Products
from onnxq.graph.values import only_reader
from onnxq.op_rule import Cost

__all__ = [
    "WITHOUT_VNNI",
    "conv_cost",
    "matmul_cost",
    "mean_cost",
    "mul_cost",
    "sigmoid_cost",
]


def matmul_cost(node: ir.Node, products: Products = VNNI) -> tuple[float, float]:
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
    conv_cost: partial(conv_cost, products=NO_VNNI),
    matmul_cost: partial(matmul_cost, products=NO_VNNI),
}
"""What takes the place of the costs of layers where sums of products overflow."""
