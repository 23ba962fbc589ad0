"""One thing that `onnxq.check` noticed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from onnxq.console.terminal import listed
from onnxq.errors import OnnxqError

__all__ = ["SHOWN", "Finding", "of_error", "sentences", "together"]

SHOWN = 3
"""Names that are said of many of which the same is found, the caches of a model's layers say."""
_PLACE = re.compile(r"(input|output) ('.*')")


@dataclass(frozen=True)
class Finding:
    """Something a user should know before quantizing.

    Attributes:
        level: ``"error"`` (quantizing fails), ``"warning"`` (it works, and is likely to disappoint) or ``"note"``.
        where: the file, node, tensor or sample it concerns.
        what: what was found, a sentence without its full stop.
        hint: what to do about it, may be empty.
    """

    level: Literal["error", "warning", "note"]
    where: str
    what: str
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


def of_error(error: OnnxqError, where: str) -> Finding:
    """An error as a finding; ``where`` if the error does not say it."""
    return Finding("error", error.where or where, error.what, error.hint or "")


def together(findings: Iterable[Finding]) -> list[Finding]:
    """Findings for people: what is found alike of several inputs, or outputs, is one, with the first names."""
    places: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        place = _PLACE.fullmatch(finding.where)
        kind, name = place.groups() if place is not None else (finding.where, "")
        key = (finding.level, kind, finding.what, finding.hint)
        first.setdefault(key, finding)
        places.setdefault(key, []).append(name)
    return [
        found if len(names) == 1 or not names[0] else replace(found, where=f"{key[1]}s {listed(names, SHOWN)}")
        for (key, found), names in zip(first.items(), places.values(), strict=True)
    ]


def sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Findings :func:`together`, each with its place and its hint in one line."""
    return tuple(f"{f.where}: {f.what}{f'. {f.hint}' if f.hint else ''}" for f in together(findings))
