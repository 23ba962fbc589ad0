"""Signal and noise of a model's outputs over many runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Power"]


class Power:
    """Sums of squares of float outputs and of their differences from the float model's.

    Attributes:
        runs: how many were added.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, names: Sequence[str], expected: Sequence[Any], got: Sequence[Any]) -> None:
        """Add one run.

        Args:
            names: of the outputs.
            expected: the float model's.
            got: those of the model compared with it.

        Raises:
            ValueError: they differ in shape.
        """
        self.runs += 1
        for name, want, have in zip(names, expected, got, strict=True):
            if want.dtype.kind == "f":
                want, have = want.astype(np.float64), have.astype(np.float64)
                signal, noise = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = signal + float(np.square(want).sum()), noise + float(np.square(want - have).sum())

    def worst(self) -> float | None:
        """SQNR in dB of the worst output that is not all zeros; None where there is none."""
        return min((_decibel(*sums) for sums in self._sums.values() if sums[0] > 0), default=None)


def _decibel(signal: float, noise: float) -> float:
    if not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(signal / noise) if noise else math.inf
