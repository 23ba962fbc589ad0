"""How a search looks on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxq.console.terminal import Screen, bytes_text, pace, plural
from onnxq.notes.reasons import to_exclude
from onnxq.searching.attempt import NEARLY, SLOWER, hardly_faster

if TYPE_CHECKING:
    from onnxq.searching.attempt import Attempt
    from onnxq.searching.result import Search

__all__ = ["attempt", "searched"]

_PLACES, _MOST_PLACES = 4, 12
"""Decimals of a metric, and those where a limit is very small."""


def attempt(screen: Screen, made: Attempt, max_drop: float) -> None:
    """One line as soon as an attempt is made."""
    if made.failed:
        text = f"failed: {made.failed}"
    else:
        places = _places(max_drop, [made])
        text = f"metric {_value(made.metric, places)}, drop {_value(made.drop, places)}, {_faster(made)}"
        text += ": meets the target" if made.meets else ": drops too much"
    screen.line(f"{made.number}. {made.name}: {text}")


def searched(screen: Screen, source: str, output: str, found: Search, seconds: float) -> None:
    """The summary of ``onnxq quantize --max-drop``."""
    screen.line(f"{screen.style(f'{source} → {output}', 'bold')}  {screen.style(f'{seconds:.1f} s', 'dim')}")
    measure = f"{found.metric}: {found.about}" if found.about else found.metric
    places = _places(found.max_drop, found.attempts)
    rows = [("metric", measure), ("float", f"{_value(found.baseline, places)}, allowed drop: {found.max_drop:g}")]
    if found.resumed:
        rows.append(("resumed", f"{plural(found.resumed, 'attempt')} of an earlier run"))
    screen.pairs(rows)
    screen.line()
    timed = all(made.quantized is None for made in found.attempts)
    head = ("", "", "tried", "metric", "drop", "speed" if timed else "quantized", "size", "s", "verdict")
    table = [_row(made, made is found.best, timed, places) for made in found.attempts]
    screen.table(head, table, right=(1, 3, 4, 5, 6, 7))
    if timed:
        on = f", on a sample ({found.timed_on})" if found.timed_on else ""
        screen.line(f"  speed: times as fast as float in onnxruntime, one thread of this machine, in turn with it{on}")
    else:
        screen.line("  quantized: share of multiply-accumulates and elements made; the speed there is not known here")
    if found.stopped:
        said = "stopped by --max-minutes; the same command goes on from here"
        screen.line(f"  {screen.style('warning', 'yellow')}  {said}")
    if found.best is not None and found.met:
        _written(screen, found, found.best)
    elif found.best is not None:
        screen.line()
        text = f"TARGET NOT MET: the drop is {_value(found.best.drop, places)}, allowed: {found.max_drop:g}"
        screen.line(screen.style(text, "bold", "red"))
        tries = "more minutes, more data" if found.stopped else "more data"
        screen.line(f"Written is the best found: {found.best.name}. Try {tries}, or a larger --max-drop.")


def _row(made: Attempt, chosen: bool, timed: bool, places: int) -> tuple[str, ...]:
    """What was tried, as a row of the table."""
    verdict = f"failed: {made.failed}" if made.failed else "meets" if made.meets else "drops too much"
    size = bytes_text(made.bytes) if made.bytes else "-"
    speed = _times(made.time) if timed else _share(made.quantized)
    measured = _value(made.metric, places), _value(made.drop, places)
    return "*" if chosen else "", str(made.number), made.name, *measured, speed, size, f"{made.seconds:.1f}", verdict


def _written(screen: Screen, found: Search, best: Attempt) -> None:
    """That a result meets the target, and what there is to say of its speed."""
    screen.line(f"  {screen.style('written', 'green')}  {best.name}, {_faster(best)}")
    other = hardly_faster(list(found.attempts), best)
    if other is not None:
        within = f"{NEARLY:.0%} of the work" if best.quantized is not None else f"{SLOWER - 1:.0%}"
        said = f"{other.name} is no more than {within} ahead of it, which counts as equally fast"
        screen.line(f"  {screen.style('note', 'dim')}  {said}")
    if best.time is not None and best.time > SLOWER:
        said = f"it is slower than the float model. {to_exclude(found.report.get('quantized_ops', {}))}"
        screen.line(f"  {screen.style('warning', 'yellow')}  {said}")


def _places(max_drop: float, made: Sequence[Attempt]) -> int:
    """Decimals with which the limit has a digit to show, and every drop shown is on the side of it that it is on."""
    places = min(max(_PLACES, math.ceil(-math.log10(max_drop)) if max_drop > 0 else 0), _MOST_PLACES)
    drops = [(tried.drop, tried.meets) for tried in made if tried.drop is not None]
    while places < _MOST_PLACES and any((round(drop, places) <= max_drop) != meets for drop, meets in drops):
        places += 1
    return places


def _value(value: float | None, places: int) -> str:
    return "-" if value is None else f"{round(value, places) or 0.0:.{places}f}"


def _times(share: float | None) -> str:
    return f"{1 / share:.2f}x" if share else "-"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _faster(made: Attempt) -> str:
    if made.quantized is not None:
        return f"{_share(made.quantized)} of the work quantized"
    return pace(1 / made.time) if made.time else "speed not measured"
