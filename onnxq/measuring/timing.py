"""How long a model takes against the float one: the best of runs in turn, so that both see the same machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from onnxq.ort.session import Session

__all__ = ["Clock", "clock_of", "glance", "share_of_time"]

_BUDGET = 1.0
"""Seconds for each of the two models, of a measurement that models are chosen by."""
_LEAST, _MOST = 3, 100
_TIMED_RUNS = 7
_LONG_BUDGET = 0.06
"""Seconds for each of the two models, of a glance."""
_SHORT_RUNS = 60
_SHORT_BUDGET = 0.02
"""Seconds for both, up to which short models are run more often: one run of microseconds says little."""
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
    turns = _in_turn((reference, result), feeds, clock)
    next(turns)  # warms up
    best, spent = (math.inf, math.inf), (0.0, 0.0)
    for turn, took in enumerate(islice(turns, _MOST), 1):
        best = min(best[0], took[0]), min(best[1], took[1])
        spent = spent[0] + took[0], spent[1] + took[1]
        if turn >= _LEAST and max(spent) > _BUDGET:
            break
    return best[1] / best[0]


def glance(reference: Session, result: Session, feeds: Feeds, clock: Clock) -> tuple[float, float]:
    """Best times of both models in seconds, in less than a fifth of a second where a run is short.

    Args:
        reference: the float model, one thread.
        result: the other, one thread.
        feeds: one sample.
        clock: see :func:`clock_of`.
    """
    turns = _in_turn((reference, result), feeds, clock)
    first = next(turns)
    if sum(first) > 2 * _LONG_BUDGET:
        return first  # others warm up
    best, spent = (math.inf, math.inf), sum(first)
    for turn, took in enumerate(islice(turns, _SHORT_RUNS - 1), 2):
        best = min(best[0], took[0]), min(best[1], took[1])
        spent += sum(took)
        if spent > 2 * _LONG_BUDGET or (turn >= _TIMED_RUNS and spent > _SHORT_BUDGET):
            break
    return best


def _in_turn(sessions: tuple[Session, Session], feeds: Feeds, clock: Clock) -> Iterator[tuple[float, float]]:
    """Runs each of both once, again and again: what they took in seconds."""

    def timed(session: Session) -> float:
        start, wall = clock(), time.perf_counter()
        session.run(feeds)
        took = clock() - start
        return took if took > 0 else time.perf_counter() - wall  # the clock stood still, as some do now and then

    while True:
        yield timed(sessions[0]), timed(sessions[1])
