"""Weights of a reduced range: no two products with 8-bit numbers that are added in 16 bits exceed these.

Where ``vpmaddubsw`` multiplies (:mod:`onnxq.ort.overflow`) two neighbours along the sum of a layer are added and cut
off at 32767. Other tools give all weights 7 bits then. It is enough that no two neighbours add up to more than 128
steps, so a channel's scale is raised only as far as its largest pair needs: mostly by a tenth to a fifth, in place of
twofold.

Which numbers are neighbours was seen in onnxruntime 1.32 on such a processor, and with them convolutions are exact in
OpenVINO 2026.4: of a matrix the rows 0 and 1, 2 and 3 and so on, of a convolution those of the weight with its channels
last, as its kernel has them; a depthwise convolution is computed otherwise and does not overflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.known import once
from onnxq.graph.values import constant_array
from onnxq.qparams import QParams
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["least_scale", "overflows", "reduced_numbers"]

Floats = NDArray[np.float64]

_STEPS = 127.4
"""Two weights that add up to this many steps are at most 128 once both are rounded: 128 * 255 is below 2**15."""
_MOST = 128
"""What two integers may add up to: times 255 it is below 2**15."""


def reduced_numbers(found: QParams, readers: Iterable[ir.Node], weight: ir.Value) -> QParams:
    """The numbers of a weight, its scales raised as far as it takes for no sum of its readers to overflow.

    Args:
        found: the numbers.
        readers: the operators that multiply with it.
        weight: the constant, finite.
    """
    array = constant_array(weight)
    assert array is not None
    scale = found.scale
    for reader in readers:
        layout = reader.op_type, *(reader.attributes.get_int(name, 0) for name in ("group", "transB"))
        least = once(weight, ("least", found.spec, layout), partial(least_scale, reader, array, found.spec))
        scale = np.maximum(scale, least.astype(np.float32))
    return replace(found, scale=np.asarray(scale, np.float32))


def overflows(reader: ir.Node, integers: NDArray[np.floating], zero_point: NDArray[np.int64]) -> bool:
    """Whether some products of integers of 8 bits, a weight as it is stored, exceed 16 bits, or may do so.

    A depthwise convolution whose channels have several zero points has another kernel, whose sums do overflow.

    Args:
        reader: see :func:`least_scale`.
        integers: the weight.
        zero_point: of all of it, or of each channel.
    """
    if _is_depthwise(reader, integers.shape):
        return bool((zero_point != zero_point.flat[0]).any())
    rows = _summed(reader, np.asarray(integers, np.float32))
    return rows is not None and bool(rows.size) and float(_pairs(rows).max()) > _MOST


def least_scale(reader: ir.Node, w: NDArray[np.floating], spec: QuantSpec) -> Floats:
    """The least scale at which no products of a weight overflow, for each of its scales.

    Args:
        reader: what multiplies with it: Attention, Conv, ConvTranspose, Gemm, LSTM or MatMul; others do not overflow.
        w: the weight, any float type, finite.
        spec: how it is quantized, per tensor or per channel.

    Returns:
        Float64, of the shape of the scale; 0 where nothing overflows.
    """
    axis = spec.granularity.axis if isinstance(spec.granularity, PerChannel) else None
    shape = () if axis is None else (w.shape[axis],)
    rows = _summed(reader, np.asarray(w, np.float32))
    if rows is None or not rows.size:
        return np.zeros(shape)
    most = _pairs(rows).max(axis=-1).astype(np.float64)
    while most.ndim > 1:
        most = most.max(axis=0)
    found = most / _STEPS
    return found if found.shape == shape else np.full(shape, found.max())


def _pairs(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """What two neighbours along the last axis add up to, without sign."""
    if rows.shape[-1] % 2:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], 1), rows.dtype)], axis=-1)
    sums: NDArray[np.float32] = np.abs(rows[..., 0::2] + rows[..., 1::2])
    return sums


def _is_depthwise(reader: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether a weight is that of a convolution of each channel alone."""
    alone = len(shape) > 2 and shape[1] == 1 and reader.attributes.get_int("group", 1) == shape[0]
    return reader.op_type == "Conv" and reader.domain == "" and alone


def _summed(reader: ir.Node, w: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """What a layer adds up for each of its outputs, in the order of its sum: (..., outputs, numbers)."""
    if reader.op_type == "Attention" and reader.domain == "com.microsoft":
        return np.moveaxis(w, -2, -1)
    if reader.domain != "":
        return None
    if reader.op_type == "LSTM":
        return w
    if reader.op_type == "MatMul":
        return w[None] if w.ndim == 1 else np.moveaxis(w, -2, -1)
    if reader.op_type == "Gemm" and w.ndim == 2:
        return w if reader.attributes.get_int("transB", 0) else w.T
    if reader.op_type == "ConvTranspose":
        return np.moveaxis(w, (0, 1), (-1, -2)) if w.ndim > 2 else None
    if reader.op_type == "Conv" and w.ndim > 2 and not _is_depthwise(reader, w.shape):
        return np.moveaxis(w, 1, -1).reshape(w.shape[0], -1)
    return None
