"""Why nodes stay float, put together for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from onnxq.plan import Kept

__all__ = ["LOST", "by_reason", "to_exclude"]

LOST = "in integers, "
"""How the reason begins of nodes that stay float since their integers leave nothing of an output."""
_OF_MANY = {"is not among ": "not among ", "has no ": "no ", "is ": ""}
"""How a sentence about one operator goes on → the same said of several nodes, behind a colon."""
_NAMED = re.compile(r"^(tensor|constant|input|node) ('[^']*')")
"""What a sentence is about, one of many."""
_SHOWN = 2
_DECIBELS = re.compile(r"(-?(?:\d+(?:\.\d+)?|inf)) dB")


def by_reason(kept: Iterable[Kept]) -> list[tuple[str, list[Kept]]]:
    """Reason → nodes, most frequent first.

    Reasons that differ only in the operator they begin with are one; so are those that differ only in the tensor or
    node they are about, or in figures in dB, of which the lowest and the highest are said.
    """
    groups: dict[str, list[Kept]] = {}
    said: dict[str, list[str]] = {}
    for item in kept:
        reason = _of_many(item)
        key = _DECIBELS.sub("dB", _NAMED.sub(r"\1", reason))
        groups.setdefault(key, []).append(item)
        said.setdefault(key, []).append(reason)
    found = [(_of_all(said[key]), members) for key, members in groups.items()]
    return sorted(found, key=lambda pair: -len(pair[1]))


def _of_all(reasons: list[str]) -> str:
    """What reasons say that differ at most in the tensor they are about and in their decibels."""
    columns = zip(*(_DECIBELS.findall(reason) for reason in reasons), strict=True)
    spans = iter([(min(column, key=float), max(column, key=float)) for column in columns])

    def span(match: re.Match[str]) -> str:
        low, high = next(spans)
        return f"{low} dB" if low == high else f"{low} to {high} dB"

    return _DECIBELS.sub(span, _NAMED.sub(lambda _: _about(reasons), reasons[0]))


def _about(reasons: list[str]) -> str:
    """``tensor 'a'``; of several, ``each of 4 tensors ('a', 'b', ...)``."""
    found = [match for match in map(_NAMED.match, reasons) if match]
    names = list(dict.fromkeys(match[2] for match in found))
    if len(names) < 2:
        return found[0][0] if found else ""
    shown = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
    return f"each of {len(names)} {found[0][1]}s ({shown})"


def _of_many(item: Kept) -> str:
    said = item.reason.removeprefix(f"{item.op} ")
    if said == item.reason:
        return said
    verb = next((verb for verb in _OF_MANY if said.startswith(verb)), None)
    return said if verb is None else _OF_MANY[verb] + said.removeprefix(verb)


def to_exclude(ops: Mapping[str, int]) -> str:
    """What to do about a result that is slow, naming the operator type that is quantized most often.

    Args:
        ops: type → quantized nodes of it.
    """
    named = f" {max(ops, key=ops.__getitem__)}, say," if ops else ""
    return f"--exclude{named} leaves operators in float"
