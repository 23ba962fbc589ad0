"""The range that holds a share of the values: the parameter is that share in percent, 99.99 by default.

Where the tensor has both signs and the spec is asymmetric, ``(100 - p) / 2`` percent are cut at each end; where it has
one sign, ``100 - p`` percent at the far end; with a symmetric spec, ``100 - p`` percent of the magnitudes. Values are
taken as spread evenly inside a bin, of 1/32 octave.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import TensorStatistics
from onnxq.errors import OptionError
from onnxq.spec import QuantSpec

__all__ = ["NAME", "check", "select"]

NAME = "percentile"
_DEFAULT = 99.99


def check(parameter: float | None) -> None:
    """Refuse a percentage that is not above 50 and at most 100."""
    if parameter is not None and not 50.0 < parameter <= 100.0:
        raise OptionError(f"range method {NAME!r} takes a percentage above 50 and up to 100, not {parameter:g}")


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The range that holds ``parameter`` percent of the values.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: how the tensor is quantized.
        parameter: the percentage, 99.99 if None.

    Returns:
        ``(lo, hi)``; ``lo == -hi`` where the spec is symmetric.
    """
    cut = 1.0 - (_DEFAULT if parameter is None else parameter) / 100.0
    lower, upper, counts = stats.edges()
    if spec.symmetric:
        near, far = np.minimum(np.abs(lower), np.abs(upper)), np.maximum(np.abs(lower), np.abs(upper))
        order = np.argsort(near, kind="stable")
        end = _quantile(near[order], far[order], counts[order], 1.0 - cut)
        return -end, end
    if stats.min >= 0.0:
        return stats.min, _quantile(lower, upper, counts, 1.0 - cut)
    if stats.max <= 0.0:
        return _quantile(lower, upper, counts, cut), stats.max
    return _quantile(lower, upper, counts, cut / 2.0), _quantile(lower, upper, counts, 1.0 - cut / 2.0)


def _quantile(lower: NDArray[np.float64], upper: NDArray[np.float64], counts: NDArray[np.int64], share: float) -> float:
    """The value below which a share of the values lie; the ends are exact at 0 and 1."""
    total = np.cumsum(counts)
    target = share * float(total[-1])
    index = min(int(np.searchsorted(total, target)), len(counts) - 1)
    inside = (target - float(total[index] - counts[index])) / float(counts[index])
    return float(lower[index] + min(max(inside, 0.0), 1.0) * (upper[index] - lower[index]))
