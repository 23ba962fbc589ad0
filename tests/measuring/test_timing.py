"""Time against the float model's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from onnxq.measuring.timing import clock_of, glance, share_of_time
from onnxq.ort.session import Session
from tests.models import build, normal

pytestmark = pytest.mark.usefixtures("speed_is_told")


class Fake:
    """A session that moves a clock on."""

    def __init__(self, now: list[float], took: Callable[[int], float]) -> None:
        self.now, self.took, self.runs = now, took, 0

    def run(self, feeds: Any) -> None:
        self.now[0] += self.took(self.runs)
        self.runs += 1


@pytest.mark.parametrize("slow", [0.001, 0.3])
def test_the_best_of_each_counts_and_the_first_run_does_not(slow: float) -> None:
    now = [0.0]
    base = Fake(now, lambda run: slow * (1 + run % 3))
    fast = Fake(now, lambda run: 0.0 if run == 0 else slow / 2 * (1 + run % 2))
    share = share_of_time(cast(Session, base), cast(Session, fast), {}, lambda: now[0])
    assert share == pytest.approx(0.5)
    assert base.runs == fast.runs <= 101
    assert now[0] < 5


def test_many_times_the_work_takes_longer() -> None:
    text = "(float[64, 256] x) => (float[64, 256] y) { %s }"
    once = build(text % "y = MatMul (x, w)", w=normal(256, 256))
    more = " \n ".join(f"t{k + 1} = MatMul ({f't{k}' if k else 'x'}, w)" for k in range(31))
    often = build(text % f"{more} \n y = MatMul (t31, w)", w=normal(256, 256))
    short, long = (Session(m.SerializeToString(), threads=1) for m in (once, often))
    feeds = {"x": np.zeros((64, 256), np.float32)}
    assert share_of_time(short, long, feeds, time.thread_time) > 2


@pytest.mark.parametrize("slow", [1e-5, 0.001, 0.3])
def test_a_glance_gives_the_best_times_and_ends_soon(slow: float) -> None:
    now = [0.0]
    base = Fake(now, lambda run: slow * (1 + run % 3))
    fast = Fake(now, lambda run: slow / 2 * (1 + run % 2))
    best = glance(cast(Session, base), cast(Session, fast), {}, lambda: now[0])
    assert best == pytest.approx((slow, slow / 2) if slow < 0.1 else (3 * slow, slow / 2))  # of one run after two
    assert now[0] < 0.2 + 10 * slow


@pytest.mark.parametrize("slow", [0.01, 0.08, 0.3, 2.0])
def test_the_first_two_runs_of_a_size_are_no_time_of_either_model(slow: float) -> None:
    """onnxruntime plans memory in the first and takes it from the system in the second: a detector's 115 ms for 80."""
    now = [0.0]
    base = Fake(now, lambda run: slow * (1.4 if run < 2 else 1))
    fast = Fake(now, lambda run: slow / 2 * (1.4 if run < 2 else 1))
    assert glance(cast(Session, base), cast(Session, fast), {}, lambda: now[0]) == pytest.approx((slow, slow / 2))
    assert now[0] < 0.2 + 7 * slow


@pytest.mark.parametrize("slow", [1e-5, 0.001, 0.003])
def test_what_one_model_takes_from_the_caches_does_not_slow_the_other(slow: float) -> None:
    now, last = [0.0], [""]

    class Cached(Fake):
        """One of two sessions, slower by half where the other has run before."""

        def run(self, feeds: Any) -> None:
            name = str(id(self))
            self.now[0] += 0.0 if name == last[0] else slow / 2
            last[0] = name
            super().run(feeds)

    base, fast = Cached(now, lambda run: slow), Cached(now, lambda run: slow / 2)
    pair = cast(Session, base), cast(Session, fast)
    assert glance(*pair, {}, lambda: now[0]) == pytest.approx((slow, slow / 2))
    assert now[0] < 0.2 + 2 * slow
    assert share_of_time(*pair, {}, lambda: now[0]) == pytest.approx(0.5)


def test_a_clock_that_stands_still_is_no_division_by_zero() -> None:
    one, other = (Fake([0.0], lambda run: 0.0) for _ in range(2))
    assert share_of_time(cast(Session, one), cast(Session, other), {}, lambda: 1.0) > 0
    assert min(glance(cast(Session, one), cast(Session, other), {}, lambda: 1.0)) > 0


def test_what_other_processes_take_does_not_count_on_the_cpu() -> None:
    for clock, counts in ((clock_of(None), False), (clock_of(["CUDAExecutionProvider"]), True)):
        start = clock()
        time.sleep(0.05)
        assert (clock() - start > 0.04) == counts


@pytest.mark.parametrize("slow", [1e-5, 1e-4])
def test_a_clock_that_loses_time_now_and_then_makes_no_model_fast(slow: float) -> None:
    now = [0.0]
    base = Fake(now, lambda run: slow)
    fast = Fake(now, lambda run: slow / 2 * (0.3 if run % 50 == 40 else 1))
    assert glance(cast(Session, base), cast(Session, fast), {}, lambda: now[0]) == pytest.approx((slow, slow / 2))
