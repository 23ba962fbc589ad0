"""The range that was seen: ``lo = min(x)``, ``hi = max(x)``, exact, over all samples.

NaN, infinities and mask sentinels are left out. Takes no parameter.
"""

from __future__ import annotations

from onnxq.calibration.statistics import TensorStatistics
from onnxq.spec import QuantSpec

__all__ = ["NAME", "PARAMETER", "select"]

NAME = "minmax"
PARAMETER = False


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The exact minimum and maximum.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: not used.
        parameter: None, there is none.

    Returns:
        ``(lo, hi)``.
    """
    return stats.min, stats.max
