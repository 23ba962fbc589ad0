"""Work that ends when its time is up: between two of its steps, wherever it shows its progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from onnxq.console.progress import Advance, Reporter, Silent

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
    """A reporter that ends the work that reports to it when its time is up.

    Attributes:
        until: by ``time.monotonic``.
        shown: shows the progress until then.
    """

    until: float = math.inf
    shown: Reporter = field(default_factory=Silent)

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Advance]:
        """See :class:`onnxq.console.progress.Reporter`.

        Raises:
            TimeIsUpError: the work begins, or goes a step on, after the time.
        """
        self.check()
        with self.shown.phase(title, total, unit) as show:

            def advance(done: int) -> None:
                show(done)
                self.check()

            yield advance

    @property
    def minutes(self) -> float | None:
        """What is left of the time, at least 0; None where it does not end."""
        return None if math.isinf(self.until) else max(0.0, self.until - time.monotonic()) / 60.0

    def check(self) -> None:
        """Go on.

        Raises:
            TimeIsUpError: not after the time.
        """
        if time.monotonic() >= self.until:
            raise TimeIsUpError
