"""Progress of long work: a bar with its rate on a terminal, an occasional plain line elsewhere, nothing when quiet.

The pipeline takes a `Reporter` and opens one phase after another::

    with reporter.phase("calibrate", total=64) as advance:
        for done, sample in enumerate(samples, 1):
            ...
            advance(done)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

__all__ = ["Advance", "BarReporter", "LineReporter", "Reporter", "Silent", "make_reporter"]

Advance = Callable[[int], None]


class Reporter(Protocol):
    """Something that shows the progress of one phase after another."""

    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> AbstractContextManager[Advance]:
        """Open a phase.

        Args:
            title: what is done, a verb or two words.
            total: number of steps, None if unknown.
            unit: what a step is, in the plural.

        Returns:
            a context manager that gives a function to be called with the number of steps done so far.
        """
        ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Advance]:
        """See `Reporter.phase`."""
        yield lambda done: None


class LineReporter:
    """Plain lines: one at the end of each phase, and one every `every` seconds in a long one.

    Args:
        stream: where to write.
        every: seconds between lines.
        clock: seconds, monotonic.
    """

    def __init__(self, stream: TextIO, *, every: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._every, self._clock = stream, every, clock

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Advance]:
        """See `Reporter.phase`."""
        start = last = self._clock()
        done = said = 0

        def line(*, ended: bool = False) -> None:
            nonlocal said
            said = done
            seconds = self._clock() - start
            count = f"{done}/{total}" if total is not None and done != total else f"{done}"
            word = unit.removesuffix("s") if (total or done) == 1 else unit
            rate = f", {_rate(done / seconds)}" if seconds > 0.05 and done else ""
            left = _left(seconds / done * (total - done)) if total is not None and done and not ended else ""
            self._stream.write(f"{title}: {count} {word} in {seconds:.1f} s{rate}{left}\n")
            self._stream.flush()

        def advance(steps: int) -> None:
            nonlocal done, last
            done = steps
            if self._clock() - last >= self._every:
                last = self._clock()
                line()

        yield advance
        if done != said:
            line(ended=True)


class BarReporter:
    """A rich progress bar with count, rate and remaining time. It vanishes when the phase ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Advance]:
        """See `Reporter.phase`."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class Rate(ProgressColumn):
            """Count and steps a second."""

            def render(self, task: Task) -> Text:
                count = (
                    f"{int(task.completed)}/{int(task.total)}" if task.total is not None else f"{int(task.completed)}"
                )
                speed = task.finished_speed or task.speed
                return Text(f"{count} {unit}" + (f"  {_rate(speed)}" if speed else ""), style="progress.download")

        console = Console(file=self._stream)
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            Rate(),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=console, transient=True, refresh_per_second=8) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, completed=done)


def _rate(speed: float) -> str:
    """Steps a second; what would be none of them as the seconds of each."""
    return f"{speed:.1f}/s" if speed >= 0.05 else f"{1 / speed:.0f} s each"


def _left(seconds: float) -> str:
    """How long it goes on at this rate, where that is a minute or more."""
    if seconds < 60:
        return ""
    return f", about {seconds / 60:.0f} min left" if seconds < 5400 else f", about {seconds / 3600:.1f} h left"


def make_reporter(*, quiet: bool = False, stream: TextIO | None = None) -> Reporter:
    """The reporter that fits: silent when quiet, a bar on a terminal, else plain lines.

    Args:
        quiet: show nothing.
        stream: where to write; None means stderr.
    """
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:  # a program without a terminal, pythonw say, has none
        return Silent()
    return BarReporter(stream) if stream.isatty() else LineReporter(stream)
