"""Scale and zero point; quantize, dequantize, fake-quantize. What makes them of a range is :mod:`onnxq.ranged`.

Everything here is bit-equal to ONNX QuantizeLinear and DequantizeLinear (operator specification, version 10 to 25)::

    q = saturate(round_half_even(x / scale) + zero_point)        x / scale in float32
    x = (q - zero_point) * scale                                 in float32

A logarithmic grid has a clip value in place of a scale; its arithmetic is that of :mod:`onnxq.grids.logarithmic`. That
of 8-bit floating-point numbers is in :mod:`onnxq.grids.float8`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.errors import BackendError, ModelError
from onnxq.grids import float8, logarithmic
from onnxq.spec import PerBlock, PerChannel, QuantSpec, Scheme

__all__ = ["QParams", "dequantize", "ends", "fake_quantize", "quantize", "spread"]

_LARGEST = float(np.finfo(np.float32).max)
_PIECE = 1 << 18
"""Numbers that are quantized at a time: so many fit a cache."""


@dataclass(frozen=True, slots=True, eq=False)
class QParams:
    """With which numbers a tensor is quantized.

    Attributes:
        spec: how the tensor is quantized.
        scale: float32, finite, > 0; shape ``()`` per tensor, ``(channels,)`` per channel, and per block the shape of
            the tensor with the blocked axis divided by the block size, rounded up. Of a logarithmic grid it is the clip
            value ``c``, the largest number that the grid holds: ``2**(n/16)`` rounded to float32.
        zero_point: int64, the same shape; the integer that stands for 0.0. Of a logarithmic grid 0, without meaning.
    """

    spec: QuantSpec
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]

    @property
    def lo(self) -> NDArray[np.float32]:
        """The lowest real number that the grid holds, shape of ``scale``; finite, see :func:`_finite`."""
        if self.spec.scheme is not Scheme.UNIFORM:
            return np.asarray(-self.hi, np.float32)
        return _finite((self.spec.qmin - self.zero_point) * self.scale)

    @property
    def hi(self) -> NDArray[np.float32]:
        """The highest real number that the grid holds, shape of ``scale``; finite, see :func:`_finite`."""
        if self.spec.scheme is Scheme.LOGARITHMIC:
            return self.scale
        if self.spec.scheme is Scheme.FLOAT8:
            return np.asarray(self.scale * np.float32(float8.LARGEST), np.float32)
        return _finite((self.spec.qmax - self.zero_point) * self.scale)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams):
            return NotImplemented
        return (
            self.spec == other.spec
            and self.scale.shape == other.scale.shape
            and bool(np.array_equal(self.scale, other.scale))
            and bool(np.array_equal(self.zero_point, other.zero_point))
        )

    def __hash__(self) -> int:
        return hash((self.spec, self.scale.shape, self.scale.tobytes(), self.zero_point.tobytes()))


def quantize(x: ArrayLike, qp: QParams) -> NDArray[Any]:
    """Quantize as ONNX QuantizeLinear does: ``saturate(round_half_even(x / scale) + zero_point)``.

    NaN, for which ONNX leaves the result open, becomes the zero point. A logarithmic grid has its own formula.

    Args:
        x: real values of any shape; computed in float32.
        qp: parameters; their shape must fit ``x``.

    Returns:
        Integers of the shape of ``x``, in the narrowest NumPy type that holds them (4-bit ones in 8-bit integers); of a
        logarithmic or float8 grid its codes, uint8.

    Raises:
        ModelError: the parameters do not fit the shape of ``x``.
    """
    values = np.asarray(x, np.float32)
    if qp.spec.scheme is not Scheme.UNIFORM:
        coded = logarithmic.quantize if qp.spec.scheme is Scheme.LOGARITHMIC else float8.quantize
        return coded(values, _shaped(qp, values.shape)[0])
    scale, zero = spread(qp, values.shape)
    if values.size <= _PIECE or len(values) == 1:
        return _quantized(values, scale, zero, qp.spec)
    result = np.empty(values.shape, _storage(qp.spec))
    step = max(1, _PIECE * len(values) // values.size)
    own = scale.ndim == values.ndim and len(scale) > 1
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        numbers = (scale[rows], zero[rows]) if own else (scale, zero)
        result[rows] = _quantized(values[rows], *numbers, qp.spec)
    return result


def _quantized(
    values: NDArray[np.float32], scale: NDArray[np.float32], zero: NDArray[np.int64], spec: QuantSpec
) -> NDArray[Any]:
    """Numbers on a uniform grid, whose scale and zero point broadcast against them."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.asarray(values / scale)
    np.rint(ratio, out=ratio)
    wide = np.float64 if spec.bits > 16 else np.float32
    shifted = ratio.astype(wide, copy=False)
    if zero.any():
        shifted = np.asarray(shifted + zero.astype(wide))
    np.clip(shifted, spec.qmin, spec.qmax, out=shifted)
    if np.isnan(shifted.sum()):
        shifted = np.where(np.isnan(shifted), zero, shifted)
    return shifted.astype(_storage(spec))


def dequantize(q: ArrayLike, qp: QParams) -> NDArray[np.float32]:
    """Dequantize as ONNX DequantizeLinear does: ``(q - zero_point) * scale`` in float32.

    Args:
        q: integers of any shape.
        qp: parameters; their shape must fit ``q``.

    Returns:
        float32 values of the shape of ``q``.

    Raises:
        ModelError: the parameters do not fit the shape of ``q``.
    """
    integers = np.asarray(q)
    if qp.spec.scheme is not Scheme.UNIFORM:
        decoded = logarithmic.dequantize if qp.spec.scheme is Scheme.LOGARITHMIC else float8.dequantize
        return decoded(integers, _shaped(qp, integers.shape)[0])
    scale, zero = spread(qp, integers.shape)
    return np.asarray((integers.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)


def fake_quantize(x: ArrayLike, qp: QParams) -> NDArray[np.float32]:
    """``dequantize(quantize(x))``, bit for bit, without the integers in between where float32 holds them exactly.

    Args:
        x: real values of any shape.
        qp: parameters; their shape must fit ``x``.

    Returns:
        float32 values of the shape of ``x``.

    Raises:
        ModelError: the parameters do not fit the shape of ``x``.
    """
    values = np.asarray(x, np.float32)
    if qp.spec.bits > 16 or not values.ndim or qp.spec.scheme is not Scheme.UNIFORM:
        return dequantize(quantize(values, qp), qp)
    scale, zero = spread(qp, values.shape)
    low = (qp.spec.qmin - zero).astype(np.float32)
    high = (qp.spec.qmax - zero).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        result = values / scale
    np.rint(result, out=result)
    np.clip(result, low, high, out=result)
    if np.isnan(result.sum()):
        result[np.isnan(result)] = 0.0
    result += np.float32(0.0)  # -0.0 has no integer
    result *= scale
    return result


def _finite(ends: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Ends of grids in float32; the outermost integer of a mask's may lie beyond, and onnxruntime makes it infinite."""
    return np.asarray(np.clip(ends, -_LARGEST, _LARGEST), np.float32)


def _require_uniform(spec: QuantSpec) -> None:
    if spec.scheme is not Scheme.UNIFORM:
        raise BackendError(f"a {spec.scheme.value} grid has no scale and zero point", hint="Use a uniform scheme")


def _storage(spec: QuantSpec) -> np.dtype[Any]:
    width = max(8, spec.storage_bits)
    return np.dtype(f"{'int' if spec.signed else 'uint'}{width}")


def spread(qp: QParams, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scale and zero point in a shape that broadcasts against a tensor of ``shape``.

    Args:
        qp: parameters of a uniform grid.
        shape: of the tensor.

    Returns:
        Scale float32 and zero point int64, in blocks repeated for each element.

    Raises:
        ModelError: the parameters do not fit the shape.
        BackendError: the grid is not uniform.
    """
    _require_uniform(qp.spec)
    return _shaped(qp, shape)


def ends(qp: QParams, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and the highest number that a tensor of ``shape`` can hold, in shapes that broadcast against it.

    Raises:
        ModelError: the parameters do not fit the shape.
    """
    scale, zero = _shaped(qp, shape)
    if qp.spec.scheme is not Scheme.UNIFORM:
        end = scale.astype(np.float64) * (1.0 if qp.spec.scheme is Scheme.LOGARITHMIC else float8.LARGEST)
        return -end, end
    wide = scale.astype(np.float64)
    return (qp.spec.qmin - zero) * wide, (qp.spec.qmax - zero) * wide


def _shaped(qp: QParams, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """:func:`spread` for any grid."""
    scale, zero = qp.scale, qp.zero_point
    granularity = qp.spec.granularity
    if scale.ndim == 0:
        return scale, zero
    if isinstance(granularity, PerChannel):
        axis = granularity.axis
        if axis >= len(shape) or scale.shape != (shape[axis],):
            raise ModelError(f"scales of shape {scale.shape} do not fit axis {axis} of a tensor of shape {shape}")
        view = tuple(-1 if index == axis else 1 for index in range(len(shape)))
        return scale.reshape(view), zero.reshape(view)
    if isinstance(granularity, PerBlock):
        axis, size = granularity.axis, granularity.size
        blocked = tuple(-(-n // size) if index == axis else n for index, n in enumerate(shape))
        if axis >= len(shape) or scale.shape != blocked:
            raise ModelError(f"scales of shape {scale.shape} do not fit blocks of {size} on axis {axis} of {shape}")
        cut = tuple(slice(0, n) for n in shape)
        return np.repeat(scale, size, axis)[cut], np.repeat(zero, size, axis)[cut]
    raise ModelError(f"scales of shape {scale.shape} for a tensor quantized as a whole")
