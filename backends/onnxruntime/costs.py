"""What onnxruntime's kernels cost on one thread, float against integer, for each element of the output.

Two tables, for x86-64 with AVX512-VNNI and without. With, a cost is in nanoseconds, measured with onnxruntime 1.32 on
an AMD EPYC of family 26: kernels between others in nets of three convolutions, from onnxruntime's profiles
(``tools/op_costs.py`` has those of the operators alone). Without, it is in units of .22 ns, measured with 1.31 and 1.32
on other processors: convolutions and products of matrices on AVX-512, other operators with VNNI. Against a float kernel
of a layer, an integer one takes more than twice as long without VNNI. What convolutions cost is in
:mod:`.convolutions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.backends.onnxruntime.convolutions import UNKNOWN, conv_cost
from onnxq.backends.onnxruntime.processors import NEAR, NO_VNNI, VNNI, Products
from onnxq.graph.values import only_reader
from onnxq.op_rule import Cost

__all__ = ["COSTS", "MOVED", "VIEWS", "WITHOUT_VNNI", "spill", "without_vnni"]


def matmul_cost(node: ir.Node, elements: float, products: Products = VNNI) -> tuple[float, float]:
    """By the inner dimension, and by the weights for few rows."""
    weight = node.inputs[1]
    inner, far = 64, 0.0
    if weight is not None and weight.shape is not None and len(weight.shape) >= 2:
        position = -1 if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 else -2
        dim = weight.shape[position]
        inner, far = dim if isinstance(dim, int) else inner, _size(weight) if _size(weight) > NEAR else 0.0
    as_float, as_integer = (
        (element + term * inner + each * far / elements) / products.unit
        for element, term, each in zip(products.element, products.term, products.weights, strict=True)
    )
    return as_float, as_integer


def add_cost(node: ir.Node, _: float) -> tuple[float, float]:
    """A float convolution of planes adds what comes from elsewhere to what nothing else reads of it, for nothing."""
    return (0.02 if any(map(_adds_up, node.inputs)) else 0.12), 0.105


def _adds_up(value: ir.Value | None) -> bool:
    maker = value.producer() if value is not None else None
    if value is None or maker is None or maker.op_type != "Conv":
        return False
    return value.shape is not None and len(value.shape) == 4 and len(value.uses()) == 1


def concat_cost(node: ir.Node, _: float) -> tuple[float, float]:
    """Integers of several scales go through tables, a row of channels at a time; float planes are copied whole."""
    made = node.outputs[0].shape
    channels = made[1] if made is not None and len(made) > 2 else None
    rows = 0.9 * len(node.inputs) / channels if isinstance(channels, int) and channels else 0.02
    return 0.08, 0.125 + min(rows, 0.2)


def mean_cost(
    node: ir.Node, _: float, *, as_float: tuple[float, float], as_integer: tuple[float, float]
) -> tuple[float, float]:
    """By the elements that become one: what it takes without them, and what each takes."""
    data = node.inputs[0]
    dims = data.shape[2:] if data is not None and data.shape is not None else (16, 16)
    area = math.prod(d if isinstance(d, int) else 16 for d in dims)
    return as_float[0] + as_float[1] * area, as_integer[0] + as_integer[1] * area


def pool_cost(
    node: ir.Node, _: float, *, as_float: tuple[float, float], as_integer: tuple[float, float]
) -> tuple[float, float]:
    """By the taps: what it takes without them, and what each takes, between convolutions."""
    taps = math.prod(node.attributes.get_ints("kernel_shape", (3, 3)))
    return as_float[0] + as_float[1] * taps, as_integer[0] + as_integer[1] * taps


def sigmoid_cost(
    node: ir.Node, _: float, *, of_silu: tuple[float, float], alone: tuple[float, float]
) -> tuple[float, float]:
    """In a SiLU onnxruntime computes it and the product in one float kernel; in integers each is a table or a loop."""
    return of_silu if _of_silu(node) else alone


def mul_cost(
    node: ir.Node, _: float, *, of_silu: tuple[float, float], alone: tuple[float, float]
) -> tuple[float, float]:
    """The product of a SiLU, or another."""
    makers = [value.producer() for value in node.inputs if value is not None]
    return of_silu if any(m is not None and m.op_type == "Sigmoid" and _of_silu(m) for m in makers) else alone


def _of_silu(sigmoid: ir.Node) -> bool:
    reader = only_reader(sigmoid.outputs[0])
    return reader is not None and reader.op_type == "Mul" and sigmoid.inputs[0] in reader.inputs


MOVED = ("Transpose", "Slice", "Split", "Gather", "Expand", "DepthToSpace", "SpaceToDepth")
"""Operators that copy elements."""
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that give other dimensions to the same memory, of floats and integers alike: 2 µs at any size."""


def spill(elements: float) -> float:
    """Nanoseconds more for each float written or read where a tensor has so many: from 3 to 13 MB on.

    Tensors of 8-bit integers are a quarter as large; their kernels take as long as before.
    """
    return _SPILLED * min(max(math.log2(max(elements, 1.0) / _HELD) / 2, 0.0), 1.0)


_HELD = 800_000
"""Floats that caches hold, among all that a net keeps."""
_SPILLED = 0.1
_OF_CONVOLUTIONS = 2.5
"""Times ``_SPILLED``: what convolutions take more for each element in and out."""


def _streamed(cost: tuple[float, float] | Cost, times: float = 1.0) -> Cost:
    """A cost, and that of large float tensors written and read."""

    def costs(node: ir.Node, elements: float) -> tuple[float, float]:
        as_float, as_integer = cost(node, elements) if callable(cost) else cost
        read = sum(
            spill(size) * size for v in node.inputs if v is not None and v.const_value is None and (size := _size(v))
        )
        return as_float + times * (spill(elements) + read / elements), as_integer

    return costs


def _size(value: ir.Value) -> float:
    """Number of elements, with 1 for a first dimension that is not known."""
    if value.shape is None:
        return 1.0
    first, *others = [*value.shape] or [1]
    sizes = [first if isinstance(first, int) else 1, *(d if isinstance(d, int) else UNKNOWN for d in others)]
    return float(max(math.prod(sizes), 1))


COSTS: Mapping[str, tuple[float, float] | Cost] = {
    "Conv": _streamed(conv_cost, _OF_CONVOLUTIONS),
    "Gemm": matmul_cost,
    "MatMul": matmul_cost,
    "Add": _streamed(add_cost),
    "Mul": _streamed(partial(mul_cost, of_silu=(0.07, 0.18), alone=(0.12, 0.185))),
    "Concat": _streamed(concat_cost),
    "GlobalAveragePool": _streamed(partial(mean_cost, as_float=(4.0, 0.04), as_integer=(8.0, 0.03))),
    "AveragePool": _streamed(partial(pool_cost, as_float=(0.12, 0.008), as_integer=(1.5, 0.45))),
    "LeakyRelu": _streamed((0.19, 0.245)),
    "Sigmoid": _streamed(partial(sigmoid_cost, of_silu=(0.07, 0.235), alone=(0.21, 0.245))),
    "Softmax": _streamed((0.355, 2.15)),
    "MaxPool": _streamed(partial(pool_cost, as_float=(0.18, 0.0045), as_integer=(0.12, 0.0095))),
    # Between integer layers the channels come last, where its kernel is ten times as slow as with planes.
    "Resize": _streamed((0.055, 0.57)),
    **dict.fromkeys(MOVED, _streamed((0.115, 0.04))),
    **dict.fromkeys(VIEWS, (0.01, 0.01)),
}
"""Row of the table → what it costs with VNNI."""

WITHOUT_VNNI: Mapping[str, tuple[float, float] | Cost] = {
    "Conv": partial(conv_cost, products=NO_VNNI),
    "Gemm": partial(matmul_cost, products=NO_VNNI),
    "MatMul": partial(matmul_cost, products=NO_VNNI),
    "Add": (1.4, 0.7),
    "Mul": partial(mul_cost, of_silu=(0.7, 1.2), alone=(1.4, 1.1)),
    "Concat": (1.2, 0.25),
    "GlobalAveragePool": partial(mean_cost, as_float=(18.0, 0.36), as_integer=(60.0, 0.2)),
    "AveragePool": (5.0, 36.0),
    "LeakyRelu": (0.95, 1.05),
    "Sigmoid": partial(sigmoid_cost, of_silu=(0.6, 1.3), alone=(1.5, 1.05)),
    "Softmax": (2.4, 9.6),
    "MaxPool": (1.0, 0.5),
    "Resize": (0.86, 10.0),
    **dict.fromkeys(MOVED, (0.9, 0.27)),
    **dict.fromkeys(VIEWS, (0.05, 0.05)),
}
"""And without."""


def without_vnni(target: Backend) -> Backend:
    """The target on a processor without VNNI. Rows that have costs of their own keep them.

    Of an element into integers and out of them: in profiles, the Transposes to channels last and back take as long as
    the QuantizeLinear and DequantizeLinear that they stand beside, and so does what orders the channels for a float
    convolution. Plans by 1.6 and 1.7 were faster than by 1.3 and 1.1: U2NetP .71 of float's time (.77), GhostNetV2 .96
    (1.01), EfficientNet-Lite0 .733 (.747); PP-OCR's detector, whose gain then is less than a tenth, stays float, .76
    (.72), with 5 dB more.
    """
    rules = {
        op: replace(rule, cost=WITHOUT_VNNI[op], cost_behind=2.5 if rule.cost_behind else 0.0)
        for op, rule in target.rules.items()
        if op in COSTS and rule.cost == COSTS[op]
    }
    return replace(
        target,
        rules={**target.rules, **rules},
        quantize_cost=1.6,
        dequantize_cost=1.7,
        split_cost={"gelu": 4.0, "layernorm": 1.5, "silu": 1.6},
        reorder_cost=1.0,
        node_cost=3000.0,
        fused_float={
            ("Conv", "HardSwish"): 2.0,
            ("Conv", "HardSigmoid"): 0.6,
            ("Conv", "LeakyRelu"): 0.95,
            ("Conv", "Sigmoid"): 1.5,
            ("Conv", "Tanh"): 2.0,
        },
        spill=lambda _: 0.0,
        overflowing=None,
    )
