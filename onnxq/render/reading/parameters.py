"""The numbers of a quantizer, from its node in a model: scale, zero point and the grid they stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.values import constant_array, input_of, is_constant, is_stored, rank_of
from onnxq.integer_operators import BORDER
from onnxq.qparams import QParams
from onnxq.ranged import from_range
from onnxq.render.reading.sound_numbers import check_numbers
from onnxq.spec import PerChannel, PerTensor, QuantSpec, Scheme

__all__ = [
    "at_border",
    "before_widening",
    "constant_parameters",
    "fake_parameters",
    "logarithmic_parameters",
    "narrowed",
    "pair_parameters",
    "same_parameters",
    "unpacked_parameters",
]

_BITS = {
    ir.DataType.INT4: (4, True),
    ir.DataType.UINT4: (4, False),
    ir.DataType.INT8: (8, True),
    ir.DataType.UINT8: (8, False),
    ir.DataType.INT16: (16, True),
    ir.DataType.UINT16: (16, False),
    ir.DataType.INT32: (32, True),
}


def pair_parameters(node: ir.Node, dtype: ir.DataType | None) -> QParams | str:
    """The numbers of a QuantizeLinear or DequantizeLinear, or why they cannot be had.

    Args:
        node: the quantizer.
        dtype: of its integers, where it has no zero point that tells.

    Returns:
        The numbers. Scales of stored integers may be below 0, see :func:`onnxq.render.reading.mirrored.mirrored`.

    Raises:
        ModelError: see :func:`onnxq.render.reading.sound_numbers.check_numbers`.
    """
    scale = constant_array(node.inputs[1])
    zero_value = input_of(node, 2)
    zero = constant_array(zero_value) if zero_value is not None else None
    dtype = zero_value.dtype if zero_value is not None else (dtype or ir.DataType.UINT8)
    if scale is None or (zero_value is not None and zero is None) or dtype not in (*_BITS, ir.DataType.FLOAT8E4M3FN):
        return f"the parameters of '{node.name}' are not constant integers: left as they are"
    if node.attributes.get_int("block_size", 0):
        return f"'{node.name}' has a scale a block: left as it is"
    bits, signed = _BITS.get(dtype, (8, True))
    points = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    value = node.inputs[0]
    rank = rank_of(value) or 0
    axis = node.attributes.get_int("axis", 1)
    if scale.size == points.size == 1:
        scale, points = scale.reshape(()), points.reshape(())
    granularity = PerChannel(axis % rank if rank else axis) if scale.ndim else PerTensor()
    spec = QuantSpec(bits, signed, signed and not points.any(), granularity)
    if dtype is ir.DataType.FLOAT8E4M3FN:
        if points.any():
            return f"the zero point of '{node.name}' is not 0: left as it is"
        spec = replace(spec, scheme=Scheme.FLOAT8)
    stored = node.op_type == "DequantizeLinear"
    either = stored and is_stored(value) and spec.scheme is Scheme.UNIFORM
    check_numbers(node, spec, np.abs(scale) if either else scale, points, stored=stored)
    return QParams(spec, scale.astype(np.float32), points)


def before_widening(value: ir.Value | None) -> ir.Value | None:
    """The 4-bit integers that a Cast widens to 8 bits of the same sign; any other value as it is."""
    cast = value.producer() if value is not None else None
    narrow = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    kinds = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}
    if value is None or narrow is None or narrow.dtype not in kinds or value.dtype is not kinds[narrow.dtype]:
        return value
    return narrow if is_constant(narrow) else value


def narrowed(qparams: QParams, stored: ir.Value, array: NDArray[Any], widened: bool) -> QParams:
    """The numbers of stored integers, whose grid may be narrower than what the quantizer reads.

    Args:
        qparams: as the quantizer says.
        stored: the integers.
        array: theirs.
        widened: a Cast lies between the integers and the quantizer.
    """
    if widened and stored.dtype is not None:
        bits = min(qparams.spec.bits, _BITS[stored.dtype][0])
        qparams = replace(qparams, spec=replace(qparams.spec, bits=bits))
    if qparams.spec.symmetric and qparams.spec.bits < 32 and array.size and array.min() > qparams.spec.qmin:
        qparams = replace(qparams, spec=replace(qparams.spec, narrow_range=True))
    return qparams


def unpacked_parameters(
    stored: ir.Value, array: NDArray[Any], scale: NDArray[Any], points: NDArray[Any] | None = None
) -> QParams | None:
    """The numbers of integers that are cast and multiplied with a scale; None where that is no grid.

    Args:
        stored: the integers.
        array: theirs.
        scale: one number, or one for each index of an axis.
        points: zero points that are taken from the integers first, see :mod:`onnxq.render.reading.shifted`; of the same
            shape.
    """
    signed_ones = (ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16)
    if (points is None and stored.dtype not in signed_ones) or scale.ndim > array.ndim:
        return None
    if points is not None and points.shape != scale.shape:
        return None
    shape: tuple[int, ...] = (1,) * (array.ndim - scale.ndim) + scale.shape  # as it is broadcast
    axes = [k for k, size in enumerate(shape) if size != 1]
    if len(axes) > 1 or (axes and shape[axes[0]] != array.shape[axes[0]]):
        return None
    assert stored.dtype is not None
    bits, signed = _BITS[stored.dtype]
    narrow = bool(array.size) and int(array.min()) > -(1 << (bits - 1))
    spec = QuantSpec(bits, signed, True, PerChannel(axes[0]) if axes else PerTensor(), narrow_range=narrow)
    if not ((scale > 0) & (scale <= np.finfo(np.float32).max / (1 << (bits - 1)))).all():
        return None
    flat = scale.astype(np.float32).reshape(-1 if axes else ())
    if points is None:
        return QParams(spec, flat, np.zeros(flat.shape, np.int64))
    spec = replace(spec, symmetric=False, narrow_range=False)
    return QParams(spec, flat, points.astype(np.int64).reshape(flat.shape))


def fake_parameters(node: ir.Node) -> QParams | None:
    """The numbers of an ``onnxq::FakeQuantize`` call, None where they are not constant.

    Raises:
        ModelError: see :func:`onnxq.render.reading.sound_numbers.check_numbers`.
    """
    scale, zero = constant_array(node.inputs[1]), constant_array(node.inputs[2])
    if scale is None or zero is None:
        return None
    low, high = node.attributes.get_int("quant_min", 0), node.attributes.get_int("quant_max", 0)
    signed = low < 0
    narrow = low == (-high if signed else 1)
    bits = high.bit_length() + 1 if signed else high.bit_length()
    axis = node.attributes.get_int("axis", -1)
    weight = is_constant(node.inputs[0])
    check_numbers(node, QuantSpec(bits, signed, False), scale.reshape(-1), zero.reshape(-1), beyond=weight)
    flat: NDArray[np.float32] = scale.reshape(-1).astype(np.float32)
    granularity = PerChannel(axis) if axis >= 0 and flat.size > 1 else PerTensor()
    points: NDArray[np.int64] = np.rint(zero.reshape(-1)).astype(np.int64)
    if isinstance(granularity, PerTensor):
        flat, points = flat.reshape(()), points.reshape(())
    symmetric = signed and not points.any()
    spec = QuantSpec(bits, signed, symmetric, granularity, narrow_range=narrow)
    return QParams(spec, flat, points)


def constant_parameters(node: ir.Node) -> QParams:
    """The numbers of an ``onnxq::FakeQuantize`` call that onnxq has written, all of them constant."""
    found = fake_parameters(node)
    assert found is not None, f"{node.name} has no constant parameters"
    return found


def logarithmic_parameters(node: ir.Node) -> QParams | None:
    """The numbers of an ``onnxq::NNIEQuantize`` call, None where its clip value is no constant number."""
    clip = constant_array(node.inputs[1])
    if clip is None or clip.size != 1:
        return None
    end = abs(float(clip.reshape(())))
    return from_range(-end, end, QuantSpec(scheme=Scheme.LOGARITHMIC))


def same_parameters(q: ir.Node, dq: ir.Node) -> bool:
    """Whether a Q and a DQ have the same scale, zero point and axis; no zero point is 0, an axis may be negative."""
    scale = constant_array(q.inputs[1])
    shape = q.inputs[0].shape if q.inputs[0] is not None else None
    rank = len(shape) if shape is not None else 0
    axis, other = (node.attributes.get_int("axis", 1) for node in (q, dq))
    if scale is not None and scale.size > 1 and axis != other and (not rank or (axis - other) % rank):
        return False
    zeros = [input_of(node, 2) for node in (q, dq)]
    if (zeros[0] is None) != (zeros[1] is None):
        given = constant_array(zeros[0] or zeros[1])
        same = given is not None and not given.any()
    else:
        same = _equal(*zeros)
    return same and _equal(q.inputs[1], dq.inputs[1])


def at_border(node: ir.Node | None, op: str, numbers: QParams) -> bool:
    """Whether a node is a quantizer, where a model takes or gives integers, with the numbers of a site beside it."""
    if node is None or node.op_type != op or BORDER not in node.meta:
        return False
    integers = node.inputs[0] if op == "DequantizeLinear" else node.outputs[0]
    found = pair_parameters(node, integers.dtype if integers is not None else None)
    if isinstance(found, str) or (found.spec.bits, found.spec.signed) != (numbers.spec.bits, numbers.spec.signed):
        return False
    return np.array_equal(found.scale, numbers.scale) and np.array_equal(found.zero_point, numbers.zero_point)


def _equal(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Whether two operands are one, or equal constants; one number is one, whatever the number of its axes."""
    if first is second:
        return True
    x, y = constant_array(first), constant_array(second)
    if x is None or y is None or x.dtype != y.dtype:
        return False
    return bool(np.array_equal(x, y)) or (x.size == y.size == 1 and bool(x.reshape(()) == y.reshape(())))
