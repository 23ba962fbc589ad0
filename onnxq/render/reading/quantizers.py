"""The quantizers in a model of any tool, as they stand there.

Those are QuantizeLinear and DequantizeLinear, FakeQuantize of onnxq and of OpenVINO, NNIEQuantize, the weights of
QOperators (QLinearConv, QGemm and so on) and of operators that read packed integers (MatMulNBits and so on), and what
finds scales of activations while it runs. Positions of inputs: onnxruntime's ContribOperators.md and Operators.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxq.errors import BackendError
from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.values import constant_array, is_constant
from onnxq.render import fake_quantize, nnie_quantize
from onnxq.render import openvino_fake_quantize as openvino
from onnxq.render.bits_kept import marked_bits
from onnxq.render.early_unpacking import axis_of_table
from onnxq.render.qoperator.expand import LAYOUTS
from onnxq.render.reading.shifted import shifted
from onnxq.spec import PerChannel

__all__ = ["QuantizedTensor", "quantizers"]

_STORED = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.INT16)


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
_WHILE_RUNNING = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
"""Operators that find the scale of what they read first."""


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantizer in a model.

    Attributes:
        tensor: name of the float tensor, or of the stored integers.
        role: ``"activation"``, ``"weight"`` or ``"bias"`` (a 32-bit constant).
        dtype: the integer type, e.g. ``"uint8"``; ``"log8"`` is the logarithmic grid of 8 bits, ``"16 levels"`` one of
            OpenVINO's that is none of integers.
        scales: number of scales; 1 is per tensor.
        axis: of the scales, None per tensor.
        scale: smallest and largest scale, None if they are computed by the model, or where there is none; of a
            logarithmic grid the clip value.
        zero_point: smallest and largest zero point, None if they are computed by the model, or where there is none.
        readers: operator types of the nodes that read it.
        output: it is an output of the model, quantized.
    """

    tensor: str
    role: str
    dtype: str
    scales: int
    axis: int | None
    scale: tuple[float, float] | None
    zero_point: tuple[int, int] | None
    readers: tuple[str, ...]
    output: bool = False


def quantizers(model: ir.Model) -> Iterator[QuantizedTensor]:
    """Every quantizer of a model, in the order of its nodes."""
    for node in model.graph.all_nodes():
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.domain in (fake_quantize.DOMAIN, openvino.DOMAIN):
            if node.op_type in (fake_quantize.NAME, nnie_quantize.NAME):
                yield replace(_function(node, source), output=node.outputs[0].is_graph_output())
        elif node.domain not in OF_QUANTIZERS:
            continue
        elif node.op_type == "QuantizeLinear":
            yield _pair(node, source)
        elif (stored := _stored(node)) is not None:
            found = _quantizer(node, stored, "weight", [use.node for use in node.outputs[0].uses()])
            yield replace(found, output=node.outputs[0].is_graph_output())
        elif node.op_type in _WHILE_RUNNING or node.op_type in _HELD:
            yield from _held(node, source)
        elif (layout := LAYOUTS.get(node.op_type)) is not None and len(layout.data) > 1:
            place = layout.data[1]
            weight = _integers(node.inputs[place])
            if weight is not None:
                scale, zero = layout.parameters()[1]
                axis = layout.weight_axis(node) % max(len(weight.shape or ()), 1)
                yield _quantizer(node, weight, "weight", [node], read=place, scale=scale, zero=zero, axis=axis)


def _pair(node: ir.Node, source: ir.Value) -> QuantizedTensor:
    """What a QuantizeLinear says; a DequantizeLinear behind it is no reader, what reads that one is."""
    behind = [use.node for use in node.outputs[0].uses()]
    back = [reader.outputs[0] for reader in behind if reader.op_type == "DequantizeLinear"]
    others = [reader for reader in behind if reader.op_type != "DequantizeLinear"]
    readers = [*(use.node for value in back for use in value.uses()), *others]
    found = _quantizer(node, source, "weight" if is_constant(source) else "activation", readers)
    return replace(found, output=any(value.is_graph_output() for value in (node.outputs[0], *back)))


def _function(node: ir.Node, source: ir.Value) -> QuantizedTensor:
    """What a node says that quantizes and dequantizes at once."""
    role = "weight" if is_constant(source) else "activation"
    readers = [use.node for use in node.outputs[0].uses()]
    if node.domain != openvino.DOMAIN:
        return _quantizer(node, source, role, readers)
    kinds = tuple(dict.fromkeys(reader.op_type for reader in readers))
    try:
        numbers, _ = openvino.numbers_of(node)
    except BackendError:
        levels = f"{node.attributes.get_int('levels', 0)} levels"
        return QuantizedTensor(source.name or "", role, levels, 0, None, None, None, kinds)
    grain, scale, zero = numbers.spec.granularity, numbers.scale, numbers.zero_point
    return QuantizedTensor(
        tensor=source.name or "",
        role=role,
        dtype=numbers.spec.dtype,
        scales=int(scale.size),
        axis=grain.axis if isinstance(grain, PerChannel) else None,
        scale=(float(scale.min()), float(scale.max())),
        zero_point=(int(zero.min()), int(zero.max())),
        readers=kinds,
    )


def _held(node: ir.Node, source: ir.Value) -> Iterator[QuantizedTensor]:
    """The activation that an operator finds a scale for, and the constants of integers that it reads."""
    if node.op_type in _WHILE_RUNNING:
        whole = node.op_type != "DynamicQuantizeLinear"
        readers = (node.op_type,) if whole else tuple(dict.fromkeys(use.node.op_type for use in node.outputs[0].uses()))
        yield QuantizedTensor(source.name or "", "activation", "uint8", 0, None, None, None, readers)
    for held in _HELD.get(node.op_type, ()):
        weight = _input(node, held.weight)
        if weight is None or weight.dtype is None or not is_constant(weight):
            continue
        scales = constant_array(_input(node, held.scale)) if held.scale is not None else None
        said = [node.attributes[name].as_int() for name in held.bits if name in node.attributes]
        bits = (*said, 4)[0] if held.bits and weight.dtype == ir.DataType.UINT8 else 0
        axis = held.axis % max(len(weight.shape or ()), 1)
        if node.op_type == "GatherBlockQuantized":
            axis = node.attributes.get_int("quantize_axis", 1)
        yield QuantizedTensor(
            tensor=weight.name or "",
            role="weight",
            dtype=f"uint{bits}" if bits else str(weight.dtype).lower(),
            scales=0 if scales is None else int(scales.size),
            axis=axis if scales is not None and scales.size > 1 else None,
            scale=(float(scales.min()), float(scales.max())) if scales is not None and scales.size else None,
            zero_point=_zero_points(node, _input(node, held.zero), bits, scales),
            readers=(node.op_type,),
        )


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


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _stored(node: ir.Node) -> ir.Value | None:
    """The constant integers that a node scales; a Mul those that a Cast makes float, of the weight of a float layer."""
    stored = _integers(_table(node.inputs[0]))
    if node.op_type == "Mul":
        return stored if stored is not node.inputs[0] and is_constant(node.inputs[1]) else None
    return stored if node.op_type == "DequantizeLinear" else None


def _table(value: ir.Value | None) -> ir.Value | None:
    """What a Gather picks rows of, where a value is such rows; else the value."""
    gather = value.producer() if value is not None else None
    return gather.inputs[0] if gather is not None and gather.op_type == "Gather" and not gather.domain else value


def _integers(value: ir.Value | None) -> ir.Value | None:
    """The constant that a value is, or the integers of at most 16 bits that a Cast, and a Sub, make it of."""
    if (found := shifted(value)) is not None:
        return found.stored
    cast = value.producer() if value is not None else None
    if value is None or cast is None or cast.op_type != "Cast":
        return value if is_constant(value) else None
    stored = cast.inputs[0]
    narrow = stored is not None and stored.dtype in _STORED
    return stored if narrow and is_constant(stored) else None


def _quantizer(
    node: ir.Node,
    source: ir.Value,
    role: str,
    readers: Iterable[ir.Node],
    *,
    read: int = 0,
    scale: int = 1,
    zero: int = 2,
    axis: int | None = None,
) -> QuantizedTensor:
    """What a node says of the tensor that it quantizes, or whose integers it reads.

    Args:
        node: the node.
        source: the tensor.
        role: see :class:`QuantizedTensor`.
        readers: the nodes that read it.
        read: position of the tensor, or of what is made of its integers.
        scale: position of the scale.
        zero: position of the zero point.
        axis: of the scales, where the node itself does not say.
    """
    scales, zero_value = constant_array(_table(_input(node, scale))), _table(_input(node, zero))
    zeros = constant_array(zero_value) if zero_value is not None else np.zeros(1, np.int64)
    if (found := shifted(_input(node, read))) is not None:
        zeros = found.points
    if node.op_type == fake_quantize.NAME:
        dtype = _fake_dtype(node)
    elif node.op_type == nnie_quantize.NAME:
        dtype = "log8"
    else:
        kind = zero_value.dtype if zero_value is not None else None
        if node.op_type in ("DequantizeLinear", "Mul") or read:
            kind = source.dtype
        elif kind is None:
            kind = ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)
        bits = marked_bits(source)
        dtype = str(kind).lower() if bits is None else f"{str(kind).lower().rstrip('0123456789')}{bits}"
    many = scales is not None and scales.size > 1
    if role == "weight" and dtype == "int32":
        role = "bias"
    return QuantizedTensor(
        tensor=source.name or "",
        role=role,
        dtype=dtype,
        scales=0 if scales is None else int(scales.size),
        axis=(_axis(node, source, scales) if axis is None else axis) if many and scales is not None else None,
        scale=(float(scales.min()), float(scales.max())) if scales is not None and scales.size else None,
        zero_point=(int(zeros.min()), int(zeros.max())) if zeros is not None and zeros.size else None,
        readers=tuple(dict.fromkeys(reader.op_type for reader in readers)),
    )


def _axis(node: ir.Node, source: ir.Value, scales: np.ndarray) -> int | None:
    gather = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node.op_type == "DequantizeLinear" and gather is not None and gather.inputs[0] is source:
        return axis_of_table(node, source, gather.inputs[1])
    if "axis" in node.attributes:
        return node.attributes["axis"].as_int()
    if scales.ndim > 1:  # FakeQuantize: shaped to broadcast
        return int(np.argmax(scales.shape))
    return 1


def _fake_dtype(node: ir.Node) -> str:
    low, high = (node.attributes[name].as_int() for name in ("quant_min", "quant_max"))
    bits = max(int(high - low).bit_length(), 1)
    return f"{'int' if low < 0 else 'uint'}{bits}"
