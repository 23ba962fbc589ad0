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
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.backends.onnxruntime.convolutions import UNKNOWN, conv_cost, elements_of, transposed_cost
from onnxq.backends.onnxruntime.processors import NEAR, NO_VNNI, VNNI, Products
from onnxq.backends.onnxruntime.resizes import repeats
from onnxq.backends.onnxruntime.shuffles import conv_before
from onnxq.graph.values import only_reader, rank_of
from onnxq.op_rule import Cost

__all__ = ["COSTS", "MOVED", "SHUFFLED", "VIEWS", "WITHOUT_VNNI", "spill_of_conversions", "without_vnni"]


_HELD, _HELD_CONVERTED = 1_600_000, 1_000_000
"""Floats that caches hold, among what a net reads and writes, and where one is converted."""
_SPILLED, _CONVERTED = 0.08, 0.2
"""Nanoseconds more for each element of a tensor four times as large, in either case."""
_OF_CONVOLUTIONS = 2.5
"""Times ``_SPILLED``: what convolutions take more for each element in, which they read for each block out."""
_ALIASED = ((4096, 0.15), (1024, 0.07), (256, 0.03))
"""What the positions of a plane are a multiple of, and nanoseconds more for each element that is converted."""


def matmul_cost(node: ir.Node, elements: float, products: Products = VNNI) -> tuple[float, float]:
    """By the inner dimension, and by the weights for few rows."""
    weight = node.inputs[1]
    inner, far = 64, 0.0
    if weight is not None and weight.shape is not None and len(weight.shape) >= 2:
        position = -1 if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 else -2
        dim = weight.shape[position]
        inner, size = dim if isinstance(dim, int) else inner, _size(weight) or 0.0
        far = size if size > NEAR else 0.0
    as_float, as_integer = (
        (element + term * inner + each * far / elements) / products.unit
        for element, term, each in zip(products.element, products.term, products.weights, strict=True)
    )
    return as_float, as_integer


def add_cost(node: ir.Node, _: float) -> tuple[float, float]:
    """A float convolution of planes adds what comes from elsewhere to what nothing else reads of it, for nothing."""
    return (0.02 if _is_fused(node) else 0.12), 0.105


def _is_fused(add: ir.Node) -> bool:
    return any(value is not None and _only_added(value) for value in add.inputs)


def _only_added(value: ir.Value) -> bool:
    maker = value.producer()
    planes = rank_of(value) == 4
    return maker is not None and maker.op_type == "Conv" and planes and len(value.uses()) == 1


def concat_cost(node: ir.Node, _: float) -> tuple[float, float]:
    """Integers of several scales go through tables, a row of channels at a time; float planes are copied whole."""
    made = node.outputs[0].shape
    channels = made[1] if made is not None and len(made) > 2 else None
    rows = 0.9 * len(node.inputs) / channels if isinstance(channels, int) and channels else 0.02
    return 0.08, 0.125 + min(rows, 0.2)


def shuffle_cost(
    node: ir.Node, _: float, *, alone: tuple[float, float] = (1.1, 0.7), behind_conv: float = 0.15
) -> tuple[float, float]:
    """What a convolution in front makes is put side by side otherwise in integers, see :mod:`.side_by_side`."""
    return alone[0], behind_conv if conv_before(node) is not None else alone[1]


def resize_cost(
    node: ir.Node, _: float, *, as_float: float = 0.055, repeating: float = 0.11, other: float = 0.57
) -> tuple[float, float]:
    """Between integer layers the channels come last, where its kernel is ten times as slow as with planes; one that
    repeats elements is written otherwise, see :mod:`.resizes`.
    """
    return as_float, repeating if repeats(node) is not None else other


def mean_cost(
    node: ir.Node, _: float, *, as_float: tuple[float, float], as_integer: tuple[float, float]
) -> tuple[float, float]:
    """By the elements that become one: what it takes without them, and what each takes."""
    data = node.inputs[0]
    dims = data.shape[2:] if data is not None and data.shape is not None else (UNKNOWN, UNKNOWN)
    return _linear(elements_of(dims), as_float, as_integer)


def pool_cost(
    node: ir.Node, _: float, *, as_float: tuple[float, float], as_integer: tuple[float, float]
) -> tuple[float, float]:
    """By the taps, between convolutions, likewise."""
    return _linear(math.prod(node.attributes.get_ints("kernel_shape", (3, 3))), as_float, as_integer)


def _linear(count: int, as_float: tuple[float, float], as_integer: tuple[float, float]) -> tuple[float, float]:
    return as_float[0] + as_float[1] * count, as_integer[0] + as_integer[1] * count


def sigmoid_cost(
    node: ir.Node, _: float, *, of_silu: tuple[float, float], alone: tuple[float, float]
) -> tuple[float, float]:
    """In a SiLU onnxruntime computes it and the product in one float kernel; in integers each is a table or a loop."""
    return of_silu if _of_silu(node) else alone


def mul_cost(
    node: ir.Node, _: float, *, of_silu: tuple[float, float], alone: tuple[float, float]
) -> tuple[float, float]:
    """The product of a SiLU, or another."""
    return of_silu if _ends_silu(node) else alone


def _ends_silu(mul: ir.Node) -> bool:
    makers = [value.producer() for value in mul.inputs if value is not None]
    return any(m is not None and m.op_type == "Sigmoid" and _of_silu(m) for m in makers)


def _of_silu(sigmoid: ir.Node) -> bool:
    reader = only_reader(sigmoid.outputs[0])
    return reader is not None and reader.op_type == "Mul" and sigmoid.inputs[0] in reader.inputs


MOVED = ("Transpose", "Slice", "Split", "Gather", "Expand")
"""Operators that copy elements."""
SHUFFLED = ("DepthToSpace", "SpaceToDepth")
"""Those that copy them one by one."""
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that give other dimensions to the same memory, of floats and integers alike: 2 µs at any size."""


def _spill(elements: float) -> float:
    """Nanoseconds more for each float written or read where a tensor has so many: from 6 to 26 MB on.

    Tensors of 8-bit integers are a quarter as large; their kernels take as long as before.
    """
    return _SPILLED * _share_beyond(elements, _HELD)


def spill_of_conversions(value: ir.Value, elements: float) -> float:
    """Nanoseconds more for each element of a tensor that is converted, with the Transpose between channels first and
    last and what orders them for float convolutions: from 4 to 16 MB on, and for planes of 16x16, 32x32 and 64x64
    positions, or so many times these, whose channels fall on the same lines of the caches.
    """
    shape = value.shape
    planes = shape is not None and len(shape) == 4 and shape[1] != 1
    positions = math.prod(d for d in shape[2:] if isinstance(d, int)) if shape is not None and planes else 1
    aliased = next((each for of, each in _ALIASED if positions % of == 0), 0.0)
    return _CONVERTED * _share_beyond(elements, _HELD_CONVERTED) + aliased


def _share_beyond(elements: float, held: float) -> float:
    """0 where caches hold so many elements, 1 from four times as many on."""
    return min(max(math.log2(max(elements, 1.0) / held) / 2, 0.0), 1.0)


def _streamed(cost: tuple[float, float] | Cost, fused: Callable[[ir.Node], bool] = lambda node: False) -> Cost:
    """A cost, and that of large float tensors written and read.

    Args:
        cost: without that.
        fused: whether a node is part of a float kernel that writes and reads for it.
    """

    def costs(node: ir.Node, elements: float) -> tuple[float, float]:
        as_float, as_integer = cost(node, elements) if callable(cost) else cost
        if fused(node):
            return as_float, as_integer
        return as_float + _spill(elements) + _read(node, elements), as_integer

    return costs


def _read(node: ir.Node, elements: float) -> float:
    """What reading large float tensors costs for each element made. One of unknown size is taken to be as large as that
    which is made.
    """
    sizes = [_size(v) or elements for v in node.inputs if v is not None and v.const_value is None]
    return sum(_spill(size) * size for size in sizes) / elements


def _reading_conv_cost(node: ir.Node, elements: float) -> tuple[float, float]:
    """Of a convolution, with what large inputs cost."""
    as_float, as_integer = conv_cost(node, elements)
    return as_float + _OF_CONVOLUTIONS * _read(node, elements), as_integer


def _size(value: ir.Value) -> float | None:
    """Number of elements, with 1 for a first dimension that is not known; None where others are not."""
    if value.shape is None:
        return None
    first, *others = [*value.shape] or [1]
    sizes = [d for d in others if isinstance(d, int)]
    if len(sizes) < len(others):
        return None
    return float(max(math.prod(sizes) * (first if isinstance(first, int) else 1), 1))


COSTS: Mapping[str, tuple[float, float] | Cost] = {
    "Conv": _reading_conv_cost,
    "ConvTranspose": _streamed(transposed_cost),
    "Gemm": matmul_cost,
    "MatMul": matmul_cost,
    "Add": _streamed(add_cost, fused=_is_fused),
    "Mul": _streamed(partial(mul_cost, of_silu=(0.07, 0.18), alone=(0.12, 0.185))),
    "Concat": _streamed(concat_cost),
    "GlobalAveragePool": _streamed(partial(mean_cost, as_float=(4.0, 0.04), as_integer=(8.0, 0.03))),
    "AveragePool": _streamed(partial(pool_cost, as_float=(0.12, 0.008), as_integer=(1.5, 0.45))),
    "LeakyRelu": _streamed((0.19, 0.245)),
    "Sigmoid": _streamed(partial(sigmoid_cost, of_silu=(0.07, 0.235), alone=(0.21, 0.245)), fused=_of_silu),
    "Softmax": _streamed((0.355, 2.15)),
    "MaxPool": _streamed(partial(pool_cost, as_float=(0.18, 0.0045), as_integer=(0.12, 0.0095))),
    "Resize": _streamed(resize_cost),
    **dict.fromkeys(MOVED, _streamed((0.115, 0.04))),
    **dict.fromkeys(SHUFFLED, _streamed(shuffle_cost)),
    **dict.fromkeys(VIEWS, (0.01, 0.01)),
}
"""Row of the table → what it costs with VNNI."""

WITHOUT_VNNI: Mapping[str, tuple[float, float] | Cost] = {
    "Conv": partial(conv_cost, products=NO_VNNI),
    "ConvTranspose": partial(transposed_cost, products=NO_VNNI),
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
    "Resize": partial(resize_cost, as_float=0.86, repeating=0.5, other=10.0),
    **dict.fromkeys(MOVED, (0.9, 0.27)),
    **dict.fromkeys(SHUFFLED, partial(shuffle_cost, alone=(5.0, 3.2), behind_conv=0.7)),
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
        spill=lambda value, size: 0.0,
        overflowing=None,
    )
