"""Mean plus and minus some standard deviations: ``mean ± k * std``, not beyond the values seen.

The parameter is ``k``, 3 by default; where no value is negative ``lo`` stays at the minimum.
"""

from __future__ import annotations

from onnxq.calibration.statistics import TensorStatistics
from onnxq.errors import OptionError
from onnxq.spec import QuantSpec

__all__ = ["NAME", "check", "select"]

NAME = "std"
_DEFAULT = 3.0


def check(parameter: float | None) -> None:
    """Refuse a number of standard deviations that is not above 0."""
    if parameter is not None and not parameter > 0.0:
        raise OptionError(f"range method {NAME!r} takes a number of standard deviations above 0, not {parameter:g}")


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """Mean plus and minus ``parameter`` standard deviations.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: not used.
        parameter: the number of standard deviations, 3 if None.

    Returns:
        ``(lo, hi)``, within the values seen.
    """
    reach = (_DEFAULT if parameter is None else parameter) * stats.std
    lo = min(max(stats.mean - reach, stats.min), stats.max)
    hi = max(min(stats.mean + reach, stats.max), stats.min)
    return (stats.min if stats.min >= 0.0 else lo), hi
