"""Moving averages of each sample's extremes: ``e = 0.9 e + 0.1 min(sample)``, begun with the first sample.

The order of the samples matters. The momentum is that of the statistics, 0.9; no other parameter is taken.

Source: Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference"
(2018), section 3.1.
"""

from __future__ import annotations

from onnxq.calibration.statistics import EMA_MOMENTUM, TensorStatistics
from onnxq.errors import OptionError
from onnxq.spec import QuantSpec

__all__ = ["NAME", "check", "select"]

NAME = "ema"


def check(parameter: float | None) -> None:
    """Refuse a momentum other than that of the statistics."""
    if parameter not in (None, EMA_MOMENTUM):
        raise OptionError(f"range method {NAME!r} knows the momentum {EMA_MOMENTUM} only", hint=f"Write just {NAME!r}")


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The moving averages of minimum and maximum.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: not used.
        parameter: None, or 0.9.

    Returns:
        ``(lo, hi)``.
    """
    return stats.ema_min, stats.ema_max
