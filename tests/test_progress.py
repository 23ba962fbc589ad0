"""Progress: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

from onnxq.progress import BarReporter, LineReporter, Silent, make_reporter


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


def test_silent_is_silent() -> None:
    with Silent().phase("x") as advance:
        advance(1)
