"""Text for people: aligned, shortened only on a terminal, readable numbers."""

from __future__ import annotations

import io
import math

import pytest

from onnxq.console.terminal import Screen, bytes_text, counts, decibel, decibels, number, pace, plural


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Utf8(io.StringIO):
    encoding = "utf-8"


def test_columns_are_aligned() -> None:
    stream = Utf8()
    Screen(stream).table(("a", "bb"), [("xyz", "1"), ("日本", "100")], right=(1,))
    assert stream.getvalue() == "  a      bb\n  xyz     1\n  日本  100\n"


def test_a_pipe_gets_whole_names_and_a_terminal_shortened_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = ("n" * 100, "12.5")
    pipe, terminal = Utf8(), Terminal()
    Screen(pipe).table(("name", "dB"), [row])
    Screen(terminal).table(("name", "dB"), [row])
    assert row[0] in pipe.getvalue()
    line = terminal.getvalue().splitlines()[1]
    assert len(line) <= 40
    assert "…" in line
    assert line.endswith("12.5")


def test_names_of_wide_characters_are_shortened_to_the_columns_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    Screen(stream).table(("name", "dB"), [("層" * 60, "12.5"), ("n" * 60, "9.5")], right=(1,))
    _, wide, narrow = stream.getvalue().splitlines()
    assert "層…" in wide
    assert len(narrow) == 40
    assert 39 <= len(wide) + wide.count("層") <= 40, "each takes two columns"


def test_a_long_name_in_a_pipe_does_not_push_other_rows_apart() -> None:
    stream = Utf8()
    Screen(stream).table(("name", "dB"), [("n" * 300, "12.5"), ("short", "3.1")])
    first, second = stream.getvalue().splitlines()[1:]
    assert first == f"  {'n' * 300}  12.5" and second == f"  {'short':<60}  3.1"


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Screen(Terminal()).style("x", "bold") == "\x1b[1mx\x1b[0m"
    assert Screen(Utf8()).style("x", "bold") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen(Terminal()).style("x", "bold") == "x"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (96_500, "96.5 KB"), (2_100_000_000, "2.1 GB"), (123_456, "123 KB")],
)
def test_sizes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_numbers() -> None:
    assert [decibel(v) for v in (12.34, math.inf, -math.inf, math.nan)] == ["12.3", "exact", "-inf", "-"]
    assert [decibel(v) for v in (-0.04, 0.05, -0.06)] == ["0.0", "0.1", "-0.1"]
    assert [decibels(v) for v in (12.34, math.inf, -math.inf, math.nan)] == ["12.3 dB", "exact", "-inf dB", "-"]
    assert [number(v) for v in (0.000123456, 1e9, math.nan)] == ["0.0001235", "1e+09", "-"]
    assert [plural(n, "node") for n in (0, 1, 1200)] == ["0 nodes", "1 node", "1,200 nodes"]


@pytest.mark.parametrize(
    ("speedup", "text"),
    [
        (1.87, "1.87 times as fast as float"),
        (1.004, "as fast as float"),
        (1.0, "as fast as float"),
        (0.9961, "as fast as float"),
        (0.61, "1.64 times slower than float"),
    ],
)
def test_what_is_slower_than_float_is_called_slower(speedup: float, text: str) -> None:
    assert pace(speedup) == text


@pytest.mark.parametrize(("encoding", "told"), [("utf-8", "m\\udcff → é.onnx"), ("ascii", "m\\udcff -> \\xe9.onnx")])
def test_a_name_that_is_no_text_is_spelled_out(encoding: str, told: str) -> None:
    """As a file's from a system of another encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    Screen(stream).line("m\udcff → é.onnx")
    stream.seek(0)
    assert stream.read() == f"{told}\n"


def test_counts() -> None:
    assert counts([]) == ""
    assert counts(["Conv", "Add", "Conv"]) == "2 Conv, 1 Add"
    assert counts("aabcd", most=2) == "2 a, 1 b and 2 others"
    assert counts("abc", most=2) == "1 a, 1 b, 1 c"
