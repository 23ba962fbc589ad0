"""Range to scale and zero point: the grid of a tensor of which the lowest and the highest number are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxq.errors import BackendError, ModelError
from onnxq.grids import float8, logarithmic
from onnxq.qparams import QParams
from onnxq.spec import QuantSpec, Scheme

__all__ = ["MIN_SCALE", "from_range", "next_power_of_two"]

MIN_SCALE = float(np.finfo(np.float32).tiny)
"""Smallest scale given: the smallest normal float32 number, 1.18e-38. Its reciprocal is finite."""

_MAX_POWER_OF_TWO = 127
"""Largest exponent of a power-of-two scale: 2**128 is not a float32."""


def from_range(lo: ArrayLike, hi: ArrayLike, spec: QuantSpec) -> QParams:
    """Scale and zero point whose grid covers a real range.

    The range is first widened to include 0, which always lies exactly on the grid. Where the range is empty
    (``lo == hi == 0``) that of ``[0, 1]`` is taken: any scale represents zeros, and this one keeps a bias in
    ``scale_x * scale_w`` units precise. A scale is never below :data:`MIN_SCALE`.

    * asymmetric: ``scale = (hi - lo) / (qmax - qmin)``, ``zero_point = round(qmin - lo / scale)``;
    * symmetric: ``scale = max(-lo, hi) / (qmax - mid)``, ``zero_point = mid``: 0 if signed, else ``2**(bits - 1)``;
    * power of two: the scale is rounded up to the next power of two, then the zero point is computed;
    * logarithmic: the clip value is ``max(-lo, hi)``, rounded to the nearest ``2**(n/16)`` on the logarithmic scale;
    * float8: ``scale = max(-lo, hi) / 448``.

    Args:
        lo: lower end of the range, real units; a number or an array of one value a channel or block.
        hi: upper end, same shape.
        spec: how the tensor is quantized.

    Returns:
        Parameters with ``scale`` of the shape of ``lo``.

    Raises:
        ModelError: an end of a range is NaN or infinite.
        BackendError: the grid is not uniform and not of 8 bits, signed and symmetric.
    """
    low = np.minimum(np.asarray(lo, np.float64), 0.0)
    high = np.maximum(np.asarray(hi, np.float64), 0.0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ModelError("a range to quantize with is not finite", hint="The tensor holds NaN or infinite values")
    low, high = np.broadcast_arrays(low, high)
    empty = low == high
    high = np.where(empty, 1.0, high)
    if spec.scheme is not Scheme.UNIFORM:
        _require_known(spec)
        fit = logarithmic.snapped if spec.scheme is Scheme.LOGARITHMIC else float8.fitted
        fitted = fit(np.maximum(-low, high))
        return QParams(spec, fitted, np.zeros(fitted.shape, np.int64))
    middle = 0 if spec.signed else 1 << (spec.bits - 1)
    if spec.symmetric:
        raw = np.maximum(-low, high) / (spec.qmax - middle)
    else:
        raw = (high - low) / (spec.qmax - spec.qmin)
    scale = np.maximum(raw.astype(np.float32), np.float32(MIN_SCALE))
    if spec.power_of_two:
        scale = next_power_of_two(scale)
    if spec.symmetric:
        zero = np.full(scale.shape, middle, np.int64)
    else:
        exact = spec.qmin - low / scale.astype(np.float64)
        zero = np.clip(np.rint(exact), spec.qmin, spec.qmax).astype(np.int64)
    return QParams(spec, np.asarray(scale, np.float32), np.asarray(zero, np.int64))


def _require_known(spec: QuantSpec) -> None:
    if spec.bits != 8 or not (spec.signed and spec.symmetric):
        raise BackendError(
            f"there is no {spec.scheme.value} grid like this: {spec}", hint="It has 8 bits, and is symmetric"
        )


def next_power_of_two(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """The smallest power of two that is not below ``scale``, exact."""
    mantissa, exponent = np.frexp(scale)
    exponent = np.minimum(np.where(mantissa == 0.5, exponent - 1, exponent), _MAX_POWER_OF_TWO)
    return np.asarray(np.ldexp(np.float32(1.0), exponent), np.float32)
