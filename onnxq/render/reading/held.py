"""Operators that read packed integers, or find scales while they run: what they hold.

Positions of inputs: onnxruntime's ContribOperators.md and Operators.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.graph.values import constant_array, input_of, is_constant
from onnxq.ort.fp4_in_float import DYNAMIC
from onnxq.render.reading.quantized_tensor import QuantizedTensor

__all__ = ["held", "holds", "scales_blocks"]


@dataclass(frozen=True, slots=True)
class _Held:
    """Where an operator has a constant of integers, and what it reads it with.

    Attributes:
        weight: position of the integers.
        scale: of their scales; None where those are applied to what it gives.
        zero: of their zero points.
        axis: of the scales in the integers; from the end if negative.
        bits: attributes that say how many bits an integer has in bytes that hold several, the first that is there; the
            middle of those is the zero point where none is given.
    """

    weight: int
    scale: int | None
    zero: int
    axis: int = -1
    bits: tuple[str, ...] = ()


_HELD = {
    "ConvInteger": (_Held(1, None, 3, axis=0),),
    "DynamicQuantizeLSTM": (_Held(1, 8, 9), _Held(2, 10, 11)),
    "DynamicQuantizeMatMul": (_Held(1, 2, 3),),
    "GatherBlockQuantized": (_Held(0, 2, 3, bits=("bits",)),),
    "MatMulInteger": (_Held(1, None, 3),),
    "MatMulNBits": (_Held(1, 2, 3, axis=0, bits=("bits",)),),
    "QAttention": (_Held(1, 4, 7),),
    "QMoE": tuple(
        _Held(3 * n - 1, 3 * n, 10 + n, axis=1, bits=(f"fc{n}_expert_weight_bits", "expert_weight_bits"))
        for n in (1, 2, 3)
    ),
}
_WHILE_RUNNING = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", DYNAMIC)
"""Operators that find the scale of what they read first."""


def holds(node: ir.Node) -> bool:
    """Whether a node is one of these operators."""
    return node.op_type in _WHILE_RUNNING or node.op_type in _HELD


def held(node: ir.Node, source: ir.Value) -> Iterator[QuantizedTensor]:
    """The activation that an operator finds a scale for, and the constants of integers that it reads."""
    if node.op_type in _WHILE_RUNNING:
        kind = "float4e2m1" if node.op_type == DYNAMIC else "uint8"
        yield QuantizedTensor(source.name or "", "activation", kind, 0, None, None, None, _readers(node))
    for place in _HELD.get(node.op_type, ()):
        weight = input_of(node, place.weight)
        if weight is None or weight.dtype is None or not is_constant(weight):
            continue
        scales = constant_array(input_of(node, place.scale)) if place.scale is not None else None
        said = [node.attributes[name].as_int() for name in place.bits if name in node.attributes]
        bits = (*said, 4)[0] if place.bits and weight.dtype == ir.DataType.UINT8 else 0
        axis = place.axis % max(len(weight.shape or ()), 1)
        if node.op_type == "GatherBlockQuantized":
            axis = node.attributes.get_int("quantize_axis", 1)
        yield QuantizedTensor(
            tensor=weight.name or "",
            role="weight",
            dtype=f"uint{bits}" if bits else str(weight.dtype).lower(),
            scales=0 if scales is None else int(scales.size),
            axis=axis if scales is not None and scales.size > 1 else None,
            scale=(float(scales.min()), float(scales.max())) if scales is not None and scales.size else None,
            zero_point=_zero_points(node, input_of(node, place.zero), bits, scales),
            readers=(node.op_type,),
        )


def _readers(node: ir.Node) -> tuple[str, ...]:
    """Who reads what an operator finds a scale for: itself, or who reads its integers, made float or not."""
    if node.op_type not in ("DynamicQuantizeLinear", DYNAMIC):
        return (node.op_type,)
    behind = [use.node for use in node.outputs[0].uses()]
    floats = [use.node for back in behind if back.op_type == "DequantizeLinear" for use in back.outputs[0].uses()]
    others = [reader for reader in behind if reader.op_type != "DequantizeLinear"]
    return tuple(dict.fromkeys(reader.op_type for reader in (*floats, *others)))


def scales_blocks(node: ir.Node) -> bool:
    """Whether a DequantizeLinear makes scales that other quantizers read, and nothing else: NVFP4 has such."""
    uses = list(node.outputs[0].uses()) if node.op_type == "DequantizeLinear" else []
    quantizing = ("QuantizeLinear", "DequantizeLinear")
    return bool(uses) and all(use.idx == 1 and use.node.op_type in quantizing for use in uses)


def _zero_points(node: ir.Node, value: ir.Value | None, bits: int, scales: np.ndarray | None) -> tuple[int, int] | None:
    """The smallest and the largest zero point; those of less than 8 bits lie packed in bytes, row by row."""
    if value is None:
        middle = 1 << (bits - 1) if bits else 0
        return middle, middle
    zeros = constant_array(value)
    if zeros is None or not zeros.size or zeros.dtype.kind == "f":
        return None
    if 0 < bits < 8 and zeros.dtype == np.uint8 and scales is not None and scales.size:
        rows = math.prod(scales.shape[:-1]) if scales.ndim > 1 else node.attributes.get_int("N", 1)
        if rows < 1 or zeros.size % rows or 8 % bits:
            return None  # nothing that a kernel would take
        apart = np.unpackbits(zeros.reshape(rows, -1, 1), axis=-1, bitorder="little").reshape(rows, -1, bits)
        zeros = np.packbits(apart, axis=-1, bitorder="little")[:, : scales.size // rows]
    return int(zeros.min()), int(zeros.max())
