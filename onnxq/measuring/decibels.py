"""Powers of a signal and of its noise as decibels."""

from __future__ import annotations

import math

__all__ = ["noise_of", "sqnr_of"]


def sqnr_of(noise: float, signal: float = 1.0) -> float:
    """SQNR in dB: 10·log10(signal / noise).

    Args:
        noise: power, or its share of the signal's.
        signal: power in the same unit.

    Returns:
        Infinite without noise; minus infinite where the noise is infinite or NaN, or there is no signal.
    """
    if noise <= 0.0:
        return math.inf
    if not math.isfinite(noise) or signal <= 0.0:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def noise_of(sqnr: float) -> float:
    """The noise that an SQNR in dB is of, as a share of the signal's power."""
    return math.pow(10.0, -sqnr / 10)
