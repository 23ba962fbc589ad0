"""Mean and variance of a stream of numbers, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments", "dot"]

_CANCELLED = 1e-6
"""Share of the sum of squares below which subtracting the mean has cost too many digits."""


def dot(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Sum of products, by one thread: BLAS would wake its others for each chunk."""
    return float(np.einsum("i,i->", x, y))


@dataclass
class Moments:
    """Count, mean and centred sum of squares, merged by Chan, Golub & LeVeque (1979)."""

    count: int = 0
    mean: float = 0.0
    centred: float = 0.0

    def add(self, x: NDArray[np.float64], squares: float) -> None:
        """Adds numbers whose sum of squares is known."""
        mean = float(x.mean())
        centred = squares - x.size * mean * mean
        if centred < _CANCELLED * squares:
            deviation = x - mean
            centred = dot(deviation, deviation)
        delta, total = mean - self.mean, self.count + x.size
        self.centred += centred + delta * delta * self.count * x.size / total
        self.mean += delta * x.size / total
        self.count = total
