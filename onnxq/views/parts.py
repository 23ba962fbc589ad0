"""What several views are made of: headings, reasons, accuracy, sizes, warnings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate

from onnxq.compare import TensorErrors
from onnxq.console.terminal import Screen, bytes_text, counts, decibels, plural
from onnxq.measuring.metrics import Errors, kept_signal
from onnxq.notes.reasons import by_reason
from onnxq.plan import Kept

__all__ = [
    "ROWS",
    "accuracy_text",
    "drops_table",
    "heading",
    "hint_lines",
    "is_counted",
    "kept_rows",
    "labelled",
    "more_line",
    "note_lines",
    "of_kinds",
    "shortened",
    "smaller",
    "warning_lines",
    "worst_outputs",
]

_OUTPUTS = 8
"""Outputs that are listed unless everything is asked for."""
ROWS = 20
"""Rows of a table that is cut short unless everything is asked for."""
_HIDDEN = 6.0
"""dB that an output's SQNR is above that of what varies in it, from which on its mean hides most of the loss."""
_LAST_BIT = 20 * math.log10(2**23)
"""dB: an error of the last bit of float32 at each value leaves at least as much."""
_NAMES = 3
_NAMES_WIDTH = 90
_LONG_NAME = 60
"""Columns of a name, above which it is told as a pattern."""
_LONG_FOLDER = 16
"""Columns of the part that names have in common, from which on it is left out."""
_QUOTED = re.compile(rf"(?<=')[^' ]{{{_LONG_NAME + 1},}}(?=')")
"""A long name in a reason."""


def heading(screen: Screen, left: str, right: str = "") -> None:
    """The first line: what it is about, and what is less important."""
    screen.line(f"{screen.style(left, 'bold')}{'  ' + screen.style(right, 'dim') if right else ''}")


def kept_rows(kept: Sequence[Kept], verbose: bool) -> list[tuple[str, str]]:
    """What stays float, by reason, most frequent first; long names as patterns, see :func:`shortened`."""
    rows: list[tuple[str, str]] = []
    label = "stays float"
    every = [m.node for m in kept if m.node]
    for reason, members in by_reason(kept):
        names = [m.node for m in members if m.node]
        if not verbose:
            reason = _QUOTED.sub(lambda found: shortened([found[0]], every)[0], reason)
        rows.append((label, f"{counts(m.op for m in members)}: {reason}"))
        label = ""
        shown = names if verbose else _some(shortened(names[:_NAMES], every))
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        if verbose:
            rows += [("", f"    {name}") for name in shown]
        elif shown:
            rows.append(("", f"    {', '.join(shown)}{more}"))
    return rows


def shortened(names: Sequence[str], among: Sequence[str] = ()) -> list[str]:
    """Names, of which long ones are patterns that match them alone: ``*`` for the folders all are in, and for a middle.

    Args:
        names: of nodes or tensors.
        among: further ones that these are told with.
    """
    every = list(dict.fromkeys([*names, *among]))
    first, last = min(every, default=""), max(every, default="")
    alike = next((k for k, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    folder = first[:alike].rpartition("/")[0]
    if len(every) < 2 or len(folder) < _LONG_FOLDER:
        folder = ""
    return [next(text for text in _ways_to_tell(name, folder) if _is_alone(text, name, every)) for name in names]


def _ways_to_tell(name: str, folder: str) -> Iterator[str]:
    """Patterns for a name, the shortest first, and itself."""
    text = f"*{name.removeprefix(folder)}" if folder else name
    for shorter in (
        f"{text[: _LONG_NAME // 3]}*{text[-2 * _LONG_NAME // 3 :]}" if len(text) > _LONG_NAME else text,
        text,
    ):
        if shorter != name:
            yield shorter.replace("[", "?").replace("]", "?")
    yield name


def _is_alone(pattern: str, name: str, every: Sequence[str]) -> bool:
    """Whether a pattern, or a name itself, matches none but that name."""
    if pattern == name:
        return True
    matches = re.compile(translate(pattern)).match
    return not any(other != name and matches(other) for other in every)


def _some(names: Sequence[str]) -> list[str]:
    """The first few names, fewer if they are long; at least one."""
    count = 1
    while count < min(_NAMES, len(names)) and sum(map(len, names[: count + 1])) <= _NAMES_WIDTH:
        count += 1
    return list(names[:count])


def accuracy_text(errors: Errors) -> str:
    """SQNR over all samples, without the mean where that hides much, of the worst and of the median sample; of
    integers, the share that is equal.
    """
    if errors.reshaped:
        others = replace(errors, reshaped=0)
        rest = f"; of the others {accuracy_text(others)}" if errors.elements else ""
        return f"another shape in {errors.reshaped} of {plural(errors.samples, 'sample')}{rest}"
    if errors.drawn:
        return f"random, not judged: {accuracy_text(replace(errors, drawn=False))}"
    if is_counted(errors):
        return f"{errors.agreement:.2%} of {errors.elements:,} values equal"
    if errors.sqnr == math.inf:
        return "exact"
    if errors.sqnr > _LAST_BIT:
        return "exact but for rounding of the last bit"
    text = decibels(errors.sqnr)
    if errors.sqnr - (varying := kept_signal(errors)) > _HIDDEN:
        text += f", {decibels(varying)} of what varies"
    if errors.samples > 1 and errors.worst_sample is not None:
        text += f", worst sample {decibels(errors.worst)} (sample {errors.worst_sample})"
        text += f", median {decibels(errors.median)}"
    return text


def worst_outputs(outputs: Mapping[str, Errors], *, everything: bool) -> dict[str, Errors]:
    """Some of many outputs, the worst first, among them the model's first one: a decoder's logits beside its caches.

    Args:
        outputs: name → errors, none of them only counted (:func:`is_counted`), in the order of the model.
        everything: all of them.
    """
    ranked = sorted(outputs.items(), key=lambda pair: math.inf if math.isnan(pair[1].level) else pair[1].level)
    shown = ranked if everything else ranked[:_OUTPUTS]
    first = next(iter(outputs.items()), None)
    if first is not None and first not in shown:
        shown = [*shown[:-1], first]
    return dict(shown)


def is_counted(errors: Errors) -> bool:
    """Whether equal values are all there is to measure: of integers, booleans and strings."""
    return math.isnan(errors.sqnr) and not math.isnan(errors.agreement)


def of_kinds(ops: Iterable[str]) -> str:
    """``: 3 Conv, 1 Add``; nothing where there are none."""
    text = counts(ops)
    return f": {text}" if text else ""


def labelled(label: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Rows with a label on the first alone."""
    return [("" if position else label, text) for position, text in enumerate(texts)]


def smaller(before: int, after: int) -> str:
    """Two sizes in bytes and their ratio."""
    ratio = before / after if after else math.inf
    text = f"{ratio:.1f} times smaller" if ratio >= 1.05 else "not smaller" if ratio <= 1 else "about the same"
    return f"{bytes_text(before)} → {bytes_text(after)}, {text}"


def drops_table(screen: Screen, drops: Sequence[TensorErrors]) -> None:
    """Where most is lost, a row each."""
    rows = [(f"{t.drop:.1f}", f"{t.errors.sqnr:.1f}", t.op, t.node or "(input)", t.tensor) for t in drops]
    screen.table(("dB lost", "SQNR dB", "op", "node", "tensor"), rows, right=(0, 1))


def more_line(screen: Screen, count: int) -> None:
    """How many rows a table was cut short by, if any."""
    if count > 0:
        screen.line(screen.style(f"  and {count:,} more (--all)", "dim"))


def warning_lines(screen: Screen, texts: Iterable[str]) -> None:
    """A line for each."""
    for text in texts:
        screen.line(f"  {screen.style('warning', 'yellow')}  {text}")


def hint_lines(screen: Screen, texts: Iterable[str]) -> None:
    """A line for each."""
    for text in texts:
        screen.line(f"  {screen.style('hint', 'cyan')}  {text}")


def note_lines(screen: Screen, texts: Iterable[str]) -> None:
    """A line for each."""
    for text in texts:
        screen.line(f"  {screen.style('note', 'dim')}  {text}")
