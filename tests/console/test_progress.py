"""Progress: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

import pytest

import onnxq
from onnxq import Options
from onnxq.console.progress import BarReporter, LineReporter, Silent, make_reporter
from tests.models import feeds_for
from tests.targets import residual


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_reporter_fits_the_stream() -> None:
    assert isinstance(make_reporter(quiet=True, stream=Terminal()), Silent)
    assert isinstance(make_reporter(stream=Terminal()), BarReporter)
    assert isinstance(make_reporter(stream=io.StringIO()), LineReporter)


def test_lines_come_every_so_often_and_at_the_end() -> None:
    now = [0.0]
    stream = io.StringIO()
    with LineReporter(stream, every=10, clock=lambda: now[0]).phase("calibrate", total=4) as advance:
        for done in range(1, 5):
            now[0] += 4
            advance(done)
    assert stream.getvalue() == (
        "calibrate: 3/4 samples in 12.0 s, 0.2/s\n"
        "calibrate: 4 samples in 16.0 s, 0.2/s\n"
    )  # fmt: skip


def test_one_long_step_is_one_line() -> None:
    now = [0.0]
    stream = io.StringIO()
    with LineReporter(stream, every=10, clock=lambda: now[0]).phase("load", total=1, unit="models") as advance:
        now[0] += 12
        advance(1)
    assert stream.getvalue() == "load: 1 model in 12.0 s, 0.1/s\n"


def test_slow_steps_are_told_by_what_each_takes() -> None:
    now = [0.0]
    stream = io.StringIO()
    with LineReporter(stream, every=10, clock=lambda: now[0]).phase("search", total=5, unit="groups") as advance:
        now[0] = 60.0
        advance(2)
    assert stream.getvalue() == "search: 2/5 groups in 60.0 s, 30 s each, about 2 min left\n"


def test_long_work_says_how_much_is_left_until_it_ends() -> None:
    now = [0.0]
    stream = io.StringIO()
    with LineReporter(stream, every=10, clock=lambda: now[0]).phase("train", total=8000, unit="steps") as advance:
        now[0] = 500.0
        advance(250)
        now[0] = 505.0
        advance(260)
    assert stream.getvalue().splitlines() == [
        "train: 250/8000 steps in 500.0 s, 0.5/s, about 4.3 h left",
        "train: 260/8000 steps in 505.0 s, 0.5/s",
    ]


def test_nothing_done_says_nothing() -> None:
    stream = io.StringIO()
    with LineReporter(stream).phase("calibrate", total=4):
        pass
    assert stream.getvalue() == ""


def test_the_bar_shows_count_and_title_with_and_without_a_total() -> None:
    for total in (3, None):
        stream = Terminal()
        with BarReporter(stream).phase("calibrate", total=total) as advance:
            for done in range(1, 4):
                advance(done)
        assert "calibrate" in stream.getvalue()
        assert "3/3 samples" in stream.getvalue() if total else "3 samples" in stream.getvalue()


def test_silent_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with Silent().phase("x") as advance:
        advance(1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["gptq", "reconstruct:iterations=2", "adaquant:iterations=2"])
def test_what_takes_long_shows_that_it_goes_on(name: str) -> None:
    if not name.startswith("gptq"):
        pytest.importorskip("torch")
    stream = io.StringIO()
    options = Options(placement="all", algorithms=(name,))
    onnxq.quantize(residual(), feeds_for(residual()), options=options, reporter=LineReporter(stream))
    titles = [line.partition(":")[0] for line in stream.getvalue().splitlines()]
    assert titles == ["calibrate", name.partition(":")[0], "check", "measure speed"]
