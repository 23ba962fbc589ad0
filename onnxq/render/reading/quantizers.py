"""The quantizers in a model of any tool, as they stand there.

Those are QuantizeLinear and DequantizeLinear, FakeQuantize of onnxq and of OpenVINO, NNIEQuantize, the weights of
QOperators (QLinearConv, QGemm and so on) and of operators that read packed integers (MatMulNBits and so on), and what
finds scales of activations while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BackendError
from onnxq.graph.domains import OF_QUANTIZERS, TENSORRT
from onnxq.graph.values import constant_array, input_of, is_constant
from onnxq.render import fake_quantize, nnie_quantize
from onnxq.render import openvino_fake_quantize as openvino
from onnxq.render.bits_kept import marked_bits
from onnxq.render.early_unpacking import axis_of_table
from onnxq.render.qoperator.expand import LAYOUTS
from onnxq.render.reading.held import held, holds, scales_blocks
from onnxq.render.reading.quantized_tensor import QuantizedTensor
from onnxq.render.reading.shifted import shifted
from onnxq.spec import PerChannel

__all__ = ["quantizers"]

_STORED = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.INT16)


def quantizers(model: ir.Model) -> Iterator[QuantizedTensor]:
    """Every quantizer of a model, in the order of its nodes; of a constant that several read alike, one."""
    found: list[QuantizedTensor] = []
    places: dict[QuantizedTensor, int] = {}
    for each in _every(model):
        numbers = replace(each, readers=(), output=False)
        place = places.setdefault(numbers, len(found)) if each.role != "activation" else len(found)
        if place == len(found):
            found.append(each)
            continue
        first = found[place]
        readers = tuple(dict.fromkeys((*first.readers, *each.readers)))
        found[place] = replace(first, readers=readers, output=first.output or each.output)
    yield from found


def _every(model: ir.Model) -> Iterator[QuantizedTensor]:
    for node in model.graph.all_nodes():
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.domain in (fake_quantize.DOMAIN, openvino.DOMAIN):
            if node.op_type in (fake_quantize.NAME, nnie_quantize.NAME):
                yield replace(_function(node, source), output=node.outputs[0].is_graph_output())
        elif node.domain not in (*OF_QUANTIZERS, TENSORRT):
            continue
        elif node.op_type == "QuantizeLinear":
            yield _pair(node, source)
        elif scales_blocks(node):
            continue
        elif (stored := _stored(node)) is not None:
            found = _quantizer(node, stored, "weight", [use.node for use in node.outputs[0].uses()])
            yield replace(found, output=node.outputs[0].is_graph_output())
        elif holds(node):
            yield from held(node, source)
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


def _stored(node: ir.Node) -> ir.Value | None:
    """The constant integers that a node scales; a Mul those that a Cast makes float, of the weight of a float layer."""
    stored = _integers(_table(node.inputs[0]))
    if node.op_type == "Mul":
        whole = stored is not None and stored.dtype is not None and stored.dtype.is_integer()
        return stored if whole and stored is not node.inputs[0] and is_constant(node.inputs[1]) else None
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
    scales, zero_value = _scales(input_of(node, scale)), _table(input_of(node, zero))
    zeros = constant_array(zero_value) if zero_value is not None else np.zeros(1, np.int64)
    if (found := shifted(input_of(node, read))) is not None:
        zeros = found.points
    dtype = _dtype(node, source, zero_value, read)
    if role == "weight" and dtype == "int32":
        role = "bias"
    several = scales is not None and scales.size > 1
    return QuantizedTensor(
        tensor=source.name or "",
        role=role,
        dtype=dtype,
        scales=0 if scales is None else int(scales.size),
        axis=(_axis(node, source, scales) if axis is None else axis) if several and scales is not None else None,
        scale=(float(scales.min()), float(scales.max())) if scales is not None and scales.size else None,
        zero_point=(int(zeros.min()), int(zeros.max())) if zeros is not None and zeros.size else None,
        readers=tuple(dict.fromkeys(reader.op_type for reader in readers)),
    )


def _scales(value: ir.Value | None) -> NDArray[Any] | None:
    """Constant scales, also those that are numbers of 8 bits times a unit, as NVFP4 has them."""
    maker = value.producer() if value is not None else None
    if maker is None or not scales_blocks(maker):
        return constant_array(_table(value))
    codes, unit = (constant_array(input_of(maker, place)) for place in (0, 1))
    return None if codes is None or unit is None or unit.size != 1 else codes.astype(np.float32) * unit.reshape(())


def _dtype(node: ir.Node, source: ir.Value, zero: ir.Value | None, read: int) -> str:
    """The type of the integers, with the bits that a mark says of them.

    Args:
        node: the quantizer, or what reads integers.
        source: the tensor.
        zero: its zero point.
        read: position of the tensor; a node that reads it elsewhere than first reads integers.
    """
    if node.op_type == fake_quantize.NAME:
        return _fake_dtype(node)
    if node.op_type == nnie_quantize.NAME:
        return "log8"
    kind = zero.dtype if zero is not None else None
    if node.op_type in ("DequantizeLinear", "Mul") or read:
        kind = source.dtype
    elif kind is None:
        kind = ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)
    bits = marked_bits(source)
    return str(kind).lower() if bits is None else f"{str(kind).lower().rstrip('0123456789')}{bits}"


def _axis(node: ir.Node, source: ir.Value, scales: np.ndarray) -> int | None:
    gather = node.inputs[0].producer() if node.inputs[0] is not None else None
    if gather is not None and gather.op_type == "Gather" and gather.inputs[0] is source:
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
