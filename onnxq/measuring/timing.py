"""How long a model takes against the float one: the best of runs, in turn so that both see the same machine.

Each takes its turn with several runs in a row: the other has filled the caches with its own weights, and a model in use
runs again and again by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from onnxq.ort.session import Session

__all__ = ["Clock", "clock_of", "glance", "share_of_time"]

_BUDGET = 1.0
"""Seconds for each of the two models, of a measurement that models are chosen by."""
_LEAST, _MOST = 3, 100
_ROW = 0.01
"""Seconds of a model's runs in a row, of which there are at most so many."""
_MOST_IN_ROW = 10
_TIMED_RUNS = 7
_LONG_BUDGET = 0.12
"""Seconds for both models, of a glance at long ones."""
_LONGEST = 1.0
"""Seconds that both together take once, from which on one run of each counts, not two."""
_SHORT = 0.01
"""Seconds that both together take once, up to which models are short: more of their runs are worth waiting for."""
_SHORT_BUDGET = 0.2
_SHORT_RUNS = 600
_OUTLIERS = 20
_FINE = 1e-5
"""Seconds that a clock must tell apart."""

Clock = Callable[[], float]
Feeds = Mapping[str, NDArray[Any]]


def clock_of(providers: Sequence[str] | None) -> Clock:
    """The clock for runs of one thread, in seconds.

    On the CPU onnxruntime computes in the calling thread then, whose CPU time is the latency without what other
    processes take. It is wall time with other providers, and where the system counts a thread's time in coarse steps.

    Args:
        providers: execution providers that were asked for; none is the CPU.
    """
    fine = time.get_clock_info("thread_time").resolution <= _FINE
    return time.thread_time if fine and not providers else time.perf_counter


def share_of_time(reference: Session, result: Session, feeds: Feeds, clock: Clock) -> float:
    """Best time of the result over best time of the reference, run in turn so that both see the same machine.

    Args:
        reference: the float model, one thread.
        result: the other, one thread.
        feeds: one sample.
        clock: see :func:`clock_of`.

    Returns:
        Below 1 where the result is faster.
    """
    race = _Race((reference, result), feeds, clock)
    race.turn(1)
    in_row = race.warm()
    while race.runs < _MOST and not (race.runs >= _LEAST and max(race.spent) > _BUDGET):
        race.turn(min(in_row, _MOST - race.runs))
    return race.best[1] / race.best[0]


def glance(reference: Session, result: Session, feeds: Feeds, clock: Clock) -> tuple[float, float]:
    """Best times of both models in seconds: in a fifth of a second where a run is short, else of one or two runs.

    Two runs of each do not count: in the first on a sample of this size memory is planned, in the second it is taken
    from the system, and both take up to half as long again. The first of each does not count for how long this takes.

    Args:
        reference: the float model, one thread.
        result: the other, one thread.
        feeds: one sample.
        clock: see :func:`clock_of`.
    """
    for session in (reference, result):
        session.run(feeds)
    race = _Race((reference, result), feeds, clock)
    race.turn(1)
    if sum(race.spent) > _LONG_BUDGET:
        race.warm()
        race.turn(1)
        if sum(race.spent) < _LONGEST:
            race.turn(1)
        return race.best
    before = sum(race.spent)
    race.warm()
    race.turn(1)
    in_row = race.in_row()
    short = sum(race.spent) <= _SHORT
    budget, most = (_SHORT_BUDGET, _SHORT_RUNS) if short else (_LONG_BUDGET, _TIMED_RUNS - 1)
    while race.runs < most and before + sum(race.spent) + in_row * sum(race.best) < budget:
        race.turn(min(in_row, most - race.runs))
    return race.best


class _Race:
    """Two models that run in turn.

    Attributes:
        spent: seconds of all runs of each.
        runs: of each.
    """

    def __init__(self, sessions: tuple[Session, Session], feeds: Feeds, clock: Clock) -> None:
        self._sessions, self._feeds, self._clock = sessions, feeds, clock
        self._reset()

    def _reset(self) -> None:
        self._times: tuple[list[float], list[float]] = [], []
        self.spent, self.runs = (0.0, 0.0), 0

    @property
    def best(self) -> tuple[float, float]:
        """The least seconds that a run of each took; of many runs a twentieth are left out below.

        Now and then a clock of CPU time loses some microseconds, half of a short run.
        """
        first, second = (sorted(times)[len(times) // _OUTLIERS] for times in self._times)
        return first, second

    def warm(self) -> int:
        """Forget the runs so far; how many are to stand in a row, by these."""
        in_row = self.in_row()
        self._reset()
        return in_row

    def in_row(self) -> int:
        """How many runs of one model are to stand in a row, by the times seen."""
        return max(1, min(_MOST_IN_ROW, int(_ROW / max(*self.best, _FINE))))

    def turn(self, runs: int) -> None:
        """Run the one model so often, then the other."""
        took = [[self._timed(session) for _ in range(runs)] for session in self._sessions]
        for times, more in zip(self._times, took, strict=True):
            times += more
        self.spent = self.spent[0] + sum(took[0]), self.spent[1] + sum(took[1])
        self.runs += runs

    def _timed(self, session: Session) -> float:
        start, wall = self._clock(), time.perf_counter()
        session.run(self._feeds)
        took = self._clock() - start
        return took if took > 0 else time.perf_counter() - wall  # the clock stood still, as some do now and then
