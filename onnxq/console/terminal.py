"""Text for people: aligned tables and pairs, colour on a terminal only, numbers as one reads them."""

from __future__ import annotations

import math
import os
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TextIO

__all__ = ["Screen", "bytes_text", "counts", "decibel", "decibels", "listed", "number", "pace", "plural"]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_LEAST = 16  # columns that a shortened cell keeps
_PADDED = 60
"""Columns that cells are padded to at most where none is shortened: names of 300 would push all other rows apart."""


class Screen:
    """Writes to a stream; styles and shortens only if that is a terminal (and NO_COLOR is not set).

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.terminal = stream.isatty()
        self._colour = self.terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._width = shutil.get_terminal_size().columns if self.terminal else 0
        encoding = getattr(stream, "encoding", None) or "ascii"
        self._unicode = encoding.lower().replace("-", "").startswith("utf")

    def line(self, text: str = "") -> None:
        """One line; what the stream cannot say, as parts of names of files that are no text, is spelled out."""
        if not self._unicode:
            text = text.replace("→", "->").replace("…", "~").replace("─", "-")
        text = text.rstrip() + "\n"
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def error(self, error: BaseException) -> None:
        """What went wrong, by the name of the program."""
        self.line(f"onnxq: {self.style('error', 'bold', 'red')}: {error}")

    def style(self, text: str, *names: str) -> str:
        """Text in a style: bold, dim, red, green, yellow, cyan."""
        return f"\x1b[{';'.join(_STYLES[n] for n in names)}m{text}\x1b[0m" if self._colour and text else text

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Labels with their values; an empty label continues the one above."""
        width = max((len(label) for label, _ in rows), default=0)
        for label, value in rows:
            self.line(f"  {self.style(label.ljust(width), 'dim')}  {value}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """A table; on a terminal its widest cells are shortened in the middle until it fits.

        Elsewhere all cells are whole; one that is longer than 60 columns pushes what follows it aside, in its own row.

        Args:
            head: titles of the columns.
            rows: cells, as many as titles in each.
            right: columns that are aligned to the right.
        """
        widths = [max(_columns(row[i]) for row in (head, *rows)) for i in range(len(head))]
        if not self.terminal:
            widths = [min(width, _PADDED) for width in widths]
        spare = self._width - 2 - 2 * (len(head) - 1) if self.terminal else 0
        while self.terminal and sum(widths) > spare and max(widths) > _LEAST:
            widest = widths.index(max(widths))
            widths[widest] = max(_LEAST, widths[widest] - (sum(widths) - spare))
        for position, row in enumerate((head, *rows)):
            cells = []
            for i, cell in enumerate(row):
                cell = _shorten(cell, widths[i]) if self.terminal else cell
                space = " " * (widths[i] - _columns(cell))
                cells.append(space + cell if i in right else cell + space)
            text = "  " + "  ".join(cells).rstrip()
            self.line(self.style(text, "dim") if position == 0 else text)


def _columns(text: str) -> int:
    """Columns a text takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _shorten(text: str, width: int) -> str:
    """Text cut in the middle to at most ``width`` columns."""
    if _columns(text) <= width:
        return text
    front = (width - 1) // 2
    end = _beginning(text[::-1], width - 1 - front)[::-1]
    return f"{_beginning(text, front)}…{end}"


def _beginning(text: str, width: int) -> str:
    """As much of a text as fits into ``width`` columns."""
    count = min(width, len(text))
    while _columns(text[:count]) > width:
        count -= 1
    return text[:count]


def bytes_text(count: float) -> str:
    """A size: ``812 B``, ``96.5 KB``, ``18.6 MB`` (powers of 1,000)."""
    for unit in ("B", "KB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def decibel(value: float) -> str:
    """A level: ``32.1``; ``exact`` without error; ``-`` where it does not apply."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "exact" if value > 0 else "-inf"
    return f"{round(value, 1) + 0.0:.1f}"  # without the sign of a zero


def decibels(value: float) -> str:
    """A level with its unit: ``32.1 dB``; ``exact`` without error; ``-`` where it does not apply."""
    text = decibel(value)
    return text if text in ("exact", "-") else f"{text} dB"


def number(value: float) -> str:
    """A number in four digits; ``-`` for NaN."""
    return "-" if math.isnan(value) else f"{value:.4g}"


def pace(speedup: float, other: str = "float") -> str:
    """Float's time over the result's, in words: ``1.87 times as fast as float``, ``1.64 times slower than float``.

    Args:
        speedup: the quotient.
        other: what ``float`` is called.
    """
    if f"{max(speedup, 1 / speedup):.2f}" == "1.00":
        return f"as fast as {other}"
    return f"{speedup:.2f} times as fast as {other}" if speedup > 1 else f"{1 / speedup:.2f} times slower than {other}"


def counts(ops: Iterable[str], most: int = 6) -> str:
    """Operator types with their numbers, the most frequent first: ``3 Conv, 1 Add``.

    Args:
        ops: one for each node.
        most: types that are named; the others are counted together, unless there is one alone.
    """
    found = Counter(ops).most_common()
    most = len(found) if len(found) <= most + 1 else most
    rest = f" and {sum(n for _, n in found[most:])} others" if len(found) > most else ""
    return ", ".join(f"{count} {op}" for op, count in found[:most]) + rest


def plural(count: int, word: str) -> str:
    """``1 node``, ``2 nodes``; a word alone, what follows it is put behind."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``: the first names, and how many others there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
