"""What a search found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.searching.attempt import Attempt

__all__ = ["Search"]


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        metric: name of the measure.
        about: what it measures, where it is onnxq's own.
        baseline: the float model's value.
        max_drop: how much less was allowed.
        attempts: what was tried, in order.
        best: the attempt whose model was written: the fastest that meets the target, else the one of the highest
            metric; None where nothing was made.
        stopped: time ran out before all was tried.
        resumed: attempts that an earlier, interrupted run had made.
        files: the files written.
        report: of the best model, see ``Quantized.report``; for ``dynamic``, ``Rewritten.report``.
        timed_on: inputs and shapes of the sample that speed was measured on, empty where it was not.
    """

    metric: str
    about: str
    baseline: float
    max_drop: float
    attempts: tuple[Attempt, ...]
    best: Attempt | None
    stopped: bool
    resumed: int
    files: tuple[Path, ...]
    report: dict[str, Any]
    timed_on: str = ""

    @property
    def met(self) -> bool:
        """The model written meets the target."""
        return self.best is not None and self.best.meets

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "metric": self.metric,
            "about": self.about,
            "float": self.baseline,
            "max_drop": self.max_drop,
            "met": self.met,
            "timed_on": self.timed_on,
            "stopped": self.stopped,
            "resumed": self.resumed,
            "best": self.best.to_dict() if self.best else None,
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "files": [str(path) for path in self.files],
            "report": self.report,
        }
