"""What a search says at its end."""

from __future__ import annotations

import io

import pytest

from onnxq.console.terminal import Screen
from onnxq.searching.attempt import Attempt, fastest, hardly_faster
from onnxq.searching.result import Search
from onnxq.searching.view import attempt, searched

REPORT = {"quantized_ops": {"Add": 1, "MatMul": 3}}


@pytest.mark.parametrize(("time", "warned"), [(1.2, True), (1.02, False), (0.5, False), (None, False)])
def test_what_is_slower_than_the_float_model_is_warned_of(time: float | None, warned: bool) -> None:
    best = Attempt(1, "range", "mse", metric=1.0, drop=0.0, time=time, meets=True)
    found = Search("agreement", "", 1.0, 0.1, (best,), best, stopped=False, resumed=0, files=(), report=REPORT)
    stream = io.StringIO()
    searched(Screen(stream), "net.onnx", "q.onnx", found, 1.0)
    assert "written" in stream.getvalue()
    assert ("it is slower than the float model" in stream.getvalue()) == warned
    assert ("--exclude MatMul, say," in stream.getvalue()) == warned, "what there is most of"


@pytest.mark.parametrize("timed_on", ["", "x 1x64"])
def test_what_speed_was_measured_on(timed_on: str) -> None:
    found = Search("agreement", "", 1.0, 0.1, (), None, False, 0, (), {}, timed_on)
    stream = io.StringIO()
    searched(Screen(stream), "net.onnx", "q.onnx", found, 1.0)
    assert (", on a sample (x 1x64)" in stream.getvalue()) == bool(timed_on)


def test_of_other_targets_it_shows_the_share_that_is_quantized() -> None:
    """And neither times nor that the model is slower: onnxruntime's time is not the target's."""
    best = Attempt(1, "default", "", metric=1.0, drop=0.0, meets=True, quantized=0.973)
    failed = Attempt(2, "range", "lsq", failed="no such grid")
    found = Search("agreement", "", 1.0, 0.1, (best, failed), best, stopped=False, resumed=0, files=(), report=REPORT)
    stream = io.StringIO()
    screen = Screen(stream)
    searched(screen, "net.onnx", "q.onnx", found, 1.0)
    attempt(screen, best, 0.1)
    shown = stream.getvalue()
    assert shown.count("97.3% of the work quantized") == 2 and " 97.3% " in shown
    for word in ("times as fast", "speed not measured", "slower", "one thread"):
        assert word not in shown


def test_what_is_faster_by_its_figure_alone_is_said() -> None:
    """Times within 5 % are what measuring varies by, so that another attempt may be written: no table looks wrong."""
    first, second = (Attempt(n, "range", f"r{n}", metric=1.0, drop=0.0, time=1 / x, meets=True)
                     for n, x in ((1, 1.62), (2, 1.69)))  # fmt: skip
    unmet = Attempt(3, "range", "r3", metric=0.0, drop=1.0, time=0.1)
    assert fastest([first, second, unmet]) is first
    stream = io.StringIO()
    made = (first, second, unmet)
    searched(Screen(stream), "m", "q", Search("a", "", 1.0, 0.1, made, first, False, 0, (), REPORT), 1.0)
    assert "range r2 is no more than 5% ahead of it, which counts as equally fast\n" in stream.getvalue()
    stream = io.StringIO()
    searched(Screen(stream), "m", "q", Search("a", "", 1.0, 0.1, (first, unmet), first, False, 0, (), REPORT), 1.0)
    assert "counts as equally fast" not in stream.getvalue()
    shares = [
        Attempt(n, "range", f"r{n}", metric=1.0, drop=0.0, quantized=q, meets=True) for n, q in ((1, 0.9), (2, 0.905))
    ]
    stream = io.StringIO()
    searched(Screen(stream), "m", "q", Search("a", "", 1.0, 0.1, tuple(shares), shares[0], False, 0, (), REPORT), 1.0)
    assert "range r2 is no more than 1% of the work ahead of it, which counts as equally fast\n" in stream.getvalue()


def test_what_is_clearly_faster_is_not_said_to_be_equal() -> None:
    timed = [Attempt(n, "range", str(n), time=time, meets=True) for n, time in ((1, 1.0), (2, 0.9))]
    shares = [Attempt(n, "range", str(n), quantized=share, meets=True) for n, share in ((1, 0.891), (2, 0.909))]
    smaller = [
        Attempt(n, "range", str(n), quantized=q, bytes=b, meets=True) for n, q, b in ((1, 0.9, 100), (2, 0.905, 80))
    ]
    for attempts in (timed, shares, smaller):
        assert hardly_faster(attempts, attempts[0]) is None
        assert fastest(attempts) is attempts[1]


@pytest.mark.parametrize(
    ("limit", "drop", "shown"),
    [
        (1e-6, 3e-6, "0.000003"),
        (0.0, 2e-7, "0.0000002"),
        (0.005, 0.00502, "0.00502"),
        (0.005, 0.02, "0.0200"),
        (0.00496, 0.00496, "0.00496"),
        (0.5, -1e-9, "0.0000"),
    ],
)
def test_the_drop_shown_is_on_the_side_of_the_limit_that_it_is_on(limit: float, drop: float, shown: str) -> None:
    """No verdict looks wrong: a drop that is too much is not shown as one that is not, nor as minus nothing."""
    made = Attempt(1, "default", "", metric=0.9 - drop, drop=drop, time=0.5, meets=drop <= limit)
    found = Search("m", "", 0.9, limit, (made,), made, False, 0, (), REPORT)
    stream = io.StringIO()
    screen = Screen(stream)
    attempt(screen, made, limit)
    searched(screen, "m", "q", found, 1.0)
    line, *summary = stream.getvalue().splitlines()
    assert f"drop {shown}, " in line and ("meets" in line) == made.meets
    (row,) = (text for text in summary if "*  1  default" in text)
    assert row.split()[4] == shown
    assert ("TARGET NOT MET: the drop is " + shown in stream.getvalue()) != made.meets


@pytest.mark.parametrize("stopped", [False, True])
def test_more_minutes_are_advised_where_these_ran_out(stopped: bool) -> None:
    made = Attempt(1, "default", "", metric=0.8, drop=0.1, time=0.5)
    stream = io.StringIO()
    searched(Screen(stream), "m", "q", Search("m", "", 0.9, 0.01, (made,), made, stopped, 0, (), REPORT), 1.0)
    assert ("Try more minutes, more data, or a larger --max-drop." in stream.getvalue()) == stopped
