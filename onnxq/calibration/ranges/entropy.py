"""The clip whose quantized distribution of magnitudes is nearest to the true one, by Kullback-Leibler divergence.

For each threshold ``t`` the histogram of ``|x|`` up to ``t``, to whose last bin all beyond is added, is the reference
``P``; ``Q`` is the same histogram without that addition, merged into as many levels as the grid has magnitudes and
spread evenly over the non-empty bins of each level. The range is ``±t`` of the least ``sum P log(P / Q)``, within the
values seen. Exact zeros are left out: every grid holds them. KL divergence clips outliers hard. Of a constant or
a few distinct values any threshold at one of them has divergence 0: there the plain minimum and maximum is given.

The logarithmic bins are first spread over 2048 equal ones (16 a level where that is more), in whole values. Where more
than 99 % of the values fall into the first of them, or the least threshold (a bin a level) is the best, the bins are
too wide to tell: the search is repeated below that threshold. Above 10 bits, where clipping gains nothing, the plain
minimum and maximum is given. Takes no parameter.

Source: Migacz, "8-bit inference with TensorRT" (GTC 2017).
"""

from __future__ import annotations

import numpy as np

from onnxq.calibration.bin_error import Floats
from onnxq.calibration.statistics import TensorStatistics
from onnxq.spec import QuantSpec

__all__ = ["NAME", "PARAMETER", "UNIFORM", "select"]

NAME = "entropy"
PARAMETER = False
UNIFORM = True
"""Its steps are those of a uniform grid."""

_BINS = 2048
_BINS_A_LEVEL = 16
_CANDIDATES = 256
_MOST_BITS = 10
_FEW = 16  # bins of the bit-pattern histogram, half an octave
_EMPTY = 1e-4  # what an empty last bin of Q counts as, in values
_CROWDED = 0.99  # of the values in the first bin


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The range of least Kullback-Leibler divergence.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: how the tensor is quantized.
        parameter: None, there is none.

    Returns:
        ``(lo, hi)``, within the values seen.
    """
    low, high = min(stats.min, 0.0), max(stats.max, 0.0)
    end = max(-low, high)
    if spec.bits > _MOST_BITS or end < np.finfo(np.float32).tiny:
        return stats.min, stats.max
    one_sided = not spec.symmetric and (low == 0.0 or high == 0.0)
    levels = spec.qmax - spec.qmin + 1 if one_sided else max((spec.qmax - spec.qmin + 1) // 2, 2)
    bins = max(_BINS, _BINS_A_LEVEL * levels)
    histogram = _linear(stats, end, bins)
    if np.count_nonzero(stats.counts) <= _FEW or histogram.sum() <= 0.0:
        return stats.min, stats.max
    while histogram[0] > _CROWDED * histogram.sum() or (kept := _best(histogram, levels)) == levels:
        end *= levels / bins
        histogram = _linear(stats, end, bins)
    threshold = end * kept / bins
    return max(low, -threshold), min(high, threshold)


def _linear(stats: TensorStatistics, end: float, bins: int) -> Floats:
    """Magnitudes above zero in equal bins from 0 to ``end``."""
    lower, upper, counts = stats.edges()
    near, far = np.minimum(np.abs(lower), np.abs(upper)), np.maximum(np.abs(lower), np.abs(upper))
    kept = far >= 2.0**-130
    order = np.argsort(near[kept], kind="stable")
    near, far, weight = near[kept][order], far[kept][order], counts[kept][order].astype(np.float64)
    borders = np.linspace(0.0, end, bins + 1)
    below = np.zeros(bins + 1)
    for part in (slice(0, None, 2), slice(1, None, 2)):  # the bins of both signs overlap: one running sum would not do
        edges = np.stack([near[part], far[part]], axis=1).reshape(-1)
        if len(edges):
            sums = np.cumsum(weight[part])
            steps = np.stack([np.concatenate([[0.0], sums[:-1]]), sums], axis=1).reshape(-1)
            below += np.interp(borders, edges, steps, left=0.0, right=float(sums[-1]))
    histogram: Floats = np.diff(np.rint(below))
    histogram[-1] += weight.sum() - below[-1]  # values at the very end
    return np.maximum(histogram, 0.0)


def _best(histogram: Floats, levels: int) -> int:
    """The number of bins to keep."""
    bins = len(histogram)
    candidates = np.unique(np.linspace(levels, bins, _CANDIDATES).astype(np.int64))
    filled = histogram > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.where(filled, histogram * np.log(histogram), 0.0)
    mass, used, plogp = (
        np.concatenate([[0.0], np.cumsum(part)]) for part in (histogram, filled.astype(float), entropy)
    )
    total = mass[-1]
    # borders of the levels, whole bins: (candidates, levels + 1)
    borders = (candidates[:, None] * np.arange(levels + 1)) // levels
    level_mass, level_used = np.diff(mass[borders], axis=1), np.diff(used[borders], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.where(level_mass > 0.0, np.log(level_mass / level_used), 0.0)
    kept, beyond = mass[candidates], total - mass[candidates]
    last = histogram[candidates - 1]
    last_log_q = np.where(last > 0.0, log_q[:, -1], np.log(_EMPTY))
    with np.errstate(divide="ignore", invalid="ignore"):
        joined = last + beyond
        last_term = np.where(joined > 0.0, joined * (np.log(joined) - last_log_q), 0.0)
        last_inside = np.where(last > 0.0, last * (np.log(last) - log_q[:, -1]), 0.0)
        inside = plogp[candidates] - (level_mass * log_q).sum(axis=1)
        divergence = (inside - last_inside + last_term) / total + np.log(kept / total)
    return int(candidates[int(np.argmin(np.where(kept > 0.0, divergence, np.inf)))])
