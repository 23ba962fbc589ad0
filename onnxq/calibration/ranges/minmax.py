"""The range that was seen: ``lo = min(x)``, ``hi = max(x)``, exact, over all samples.

NaN, infinities and mask sentinels are left out. Takes no parameter.
"""

from __future__ import annotations

from onnxq.calibration.statistics import TensorStatistics
from onnxq.errors import OptionError
from onnxq.spec import QuantSpec

__all__ = ["NAME", "check", "select"]

NAME = "minmax"


def check(parameter: float | None) -> None:
    """Refuse a parameter: there is none."""
    if parameter is not None:
        raise OptionError(f"range method {NAME!r} takes no parameter")


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The exact minimum and maximum.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: not used.
        parameter: None.

    Returns:
        ``(lo, hi)``.
    """
    check(parameter)
    return stats.min, stats.max
