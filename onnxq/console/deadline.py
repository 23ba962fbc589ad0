"""Work that ends when its time is up: between two of its steps, wherever it shows its progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onnxq.console.progress import Advance

__all__ = ["Deadline", "TimeIsUpError", "after", "end_of_share"]


class TimeIsUpError(Exception):
    """The time is up; caught by whoever has set it."""


def after(minutes: float | None) -> float:
    """The time, by ``time.monotonic``, that so many minutes from now end; infinite for None."""
    return math.inf if minutes is None else time.monotonic() + 60.0 * minutes


def end_of_share(until: float, sharers: int) -> float:
    """The time at which the first of some that share the time left evenly has had its part."""
    now = time.monotonic()
    return now + (until - now) / sharers


@dataclass(frozen=True)
class Deadline:
    """A reporter that shows nothing, and ends the work that reports to it when its time is up.

    Attributes:
        until: by ``time.monotonic``.
    """

    until: float = math.inf

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Advance]:
        """See :class:`onnxq.console.progress.Reporter`.

        Raises:
            TimeIsUpError: the work begins, or goes a step on, after the time.
        """
        self.check()
        yield lambda done: self.check()

    def check(self) -> None:
        """Go on.

        Raises:
            TimeIsUpError: not after the time.
        """
        if time.monotonic() >= self.until:
            raise TimeIsUpError
