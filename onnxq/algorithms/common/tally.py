"""What became of the layers or blocks that an algorithm worked on, for its note."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts what became of layers or blocks.

    Attributes:
        unit: what is counted, e.g. ``"layer"``.
        better: how many were changed.
        undone: how many were left as they were, since held-back samples were no better.
        ratios: error after over error before, on samples held back, of those that were changed.
        skipped: reason → how many were left alone.
    """

    unit: str
    better: int = 0
    undone: int = 0
    ratios: list[float] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count one that is left alone."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def __str__(self) -> str:
        text = f"{self.better} {self.unit}s"
        if self.ratios:
            gain = -10.0 * sum(math.log10(max(ratio, 1e-12)) for ratio in self.ratios) / len(self.ratios)
            text += f", output error {gain:.1f} dB lower on average on samples held back"
        if self.undone:
            text += f"; {self.undone} undone where it was not lower"
        return text + "".join(f"; {count} left alone: {why}" for why, count in self.skipped.items())
