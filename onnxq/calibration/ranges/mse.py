"""The range whose grid makes the least squared error on the values seen.

``argmin over (lo, hi) of sum_i (x_i - fake_quantize(x_i))**2``, on the bins of the histogram: candidates on a geometric
grid of clips, for both ends where the tensor has both signs and the spec is asymmetric, are ranked by running sums
(:meth:`Bins.quick`), refined around the best, and the best of all are computed in full (:meth:`Bins.exact`). The plain
minimum and maximum is always among these, so the result is never worse than it. Takes no parameter.

A logarithmic grid takes the largest magnitude: its numbers do not move with the range, so that a smaller one gains
nothing but numbers below the smallest, 1/245 of the largest.

Source: the optimal clipping of Sung et al., "Resiliency of deep neural networks under quantization" (2015), and Banner
et al., "Post training 4-bit quantization" (2019), searched for on the histogram instead of a model distribution.
"""

from __future__ import annotations

import numpy as np

from onnxq.calibration.bin_error import Bins, Floats
from onnxq.calibration.statistics import TensorStatistics
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec, Scheme

__all__ = ["NAME", "PARAMETER", "select"]

NAME = "mse"
PARAMETER = False

_COARSE = 2.0 ** -np.concatenate([np.arange(0.0, 3.0, 0.125), np.arange(3.0, 14.5, 0.5)])  # clips, of the extreme
_COARSE_2D = 2.0 ** -np.concatenate([np.arange(0.0, 2.0, 0.25), np.arange(2.0, 8.5, 0.5), [10.0, 12.0, 14.0]])
_FINE = 2.0 ** np.linspace(-0.125, 0.125, 17)
_FINE_2D = 2.0 ** np.linspace(-0.25, 0.25, 9)
_FINEST_2D = 2.0 ** np.linspace(-0.0625, 0.0625, 5)
_RECHECKED = 8
_WORTH = 0.01  # share of the error that clipping must save: a smaller gain is below what the bins can tell


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The range of least squared error.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: how the tensor is quantized; its true grid is what is judged, power-of-two scales included.
        parameter: None, there is none.

    Returns:
        ``(lo, hi)``; ``lo`` is 0 where no value is negative, ``hi`` is 0 where none is positive, and ``lo == -hi``
        where the spec is symmetric and its grid uniform.
    """
    low, high = min(stats.min, 0.0), max(stats.max, 0.0)
    if low == high or spec.scheme is not Scheme.UNIFORM:
        return low, high
    bins = Bins(stats)
    if spec.symmetric:
        end = max(-low, high)
        lo, hi = _search(bins, spec, -end, end, tied=True)
    else:
        lo, hi = _search(bins, spec, low, high, tied=low == 0.0 or high == 0.0)
    return lo, hi


def _search(bins: Bins, spec: QuantSpec, low: float, high: float, *, tied: bool) -> tuple[float, float]:
    """The best clips of ``low`` and ``high``, by one common factor if they are tied."""
    if tied:
        first = (low * _COARSE, high * _COARSE)
        steps = [(_FINE, _FINE)]
    else:
        first = _pairs(low * _COARSE_2D, high * _COARSE_2D)
        steps = [_pairs(_FINE_2D, _FINE_2D), _pairs(_FINEST_2D, _FINEST_2D)]
    lows, highs = [np.array([low]), first[0]], [np.array([high]), first[1]]
    errors = [bins.quick(from_range(lo, hi, spec)) for lo, hi in zip(lows, highs, strict=True)]
    for lo_steps, hi_steps in steps:
        best = int(np.argmin(np.concatenate(errors)))
        lo = np.maximum(np.concatenate(lows)[best] * lo_steps, low)
        hi = np.minimum(np.concatenate(highs)[best] * hi_steps, high)
        lows.append(lo)
        highs.append(hi)
        errors.append(bins.quick(from_range(lo, hi, spec)))
    error, lo, hi = (np.concatenate(parts) for parts in (errors, lows, highs))
    candidates = np.unique(np.concatenate([[0], np.argsort(error, kind="stable")[:_RECHECKED]]))
    exact = bins.exact(from_range(lo[candidates], hi[candidates], spec))
    chosen = int(candidates[int(np.argmin(exact))]) if exact.min() < (1.0 - _WORTH) * exact[0] else 0
    return float(lo[chosen]), float(hi[chosen])


def _pairs(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """All pairs of two lists, flat."""
    a, b = np.meshgrid(first, second, indexing="ij")
    return a.reshape(-1), b.reshape(-1)
