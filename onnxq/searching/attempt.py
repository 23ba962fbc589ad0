"""What the search tries, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from onnxq.options import Options

__all__ = ["NEARLY", "SLOWER", "Attempt", "Candidate", "best", "faster", "fastest", "hardly_faster"]

SLOWER = 1.05
"""A model that takes up to this much of another's time counts as just as fast: what measuring varies by.
So does a file of up to this much of another's size."""
NEARLY = 0.01
"""Shares of the work that differ by no more count as equal: which cheap nodes are quantized varies a little."""


@dataclass(frozen=True)
class Candidate:
    """Something to try.

    Attributes:
        level: ``"default"``, ``"range"``, ``"algorithm"``, ``"16 bits"`` or ``"float"``.
        what: the rest of its name, unique within the level.
        options: what is asked of the pipeline.
    """

    level: str
    what: str
    options: Options


@dataclass(frozen=True)
class Attempt:
    """What came of a candidate.

    Attributes:
        number: its place, from 1.
        level: see :class:`Candidate`.
        what: see :class:`Candidate`.
        metric: the metric of its model; None where it failed.
        drop: the float model's metric minus this one.
        time: what the model takes, as a share of the float model's time on one thread; None where it was not measured,
            as for targets whose results onnxruntime only simulates.
        bytes: size of the files that the target runs.
        meets: the drop is within the limit.
        seconds: that it took.
        failed: why there is no model, empty where there is one.
        digest: SHA-256 of the files.
        structure: tells models of the same operators from others.
        files: names of the files.
        quantized: share of the work that is quantized, see :mod:`onnxq.searching.work`; None where time decides.
    """

    number: int
    level: str
    what: str
    metric: float | None = None
    drop: float | None = None
    time: float | None = None
    bytes: int = 0
    meets: bool = False
    seconds: float = 0.0
    failed: str = ""
    digest: str = ""
    structure: str = ""
    files: tuple[str, ...] = ()
    quantized: float | None = None

    @property
    def name(self) -> str:
        """For people, e.g. ``"range entropy"``."""
        return f"{self.level} {self.what}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {**asdict(self), "files": list(self.files)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Attempt:
        """What :meth:`to_dict` gave, of this version or of one whose attempts had no ``quantized``.

        Raises:
            TypeError: a key is missing or unknown.
        """
        known = {f.name for f in fields(Attempt)}
        if not known - {"quantized"} <= set(values) <= known:
            raise TypeError("the keys of an attempt do not fit")
        return Attempt(**{**values, "files": tuple(values["files"])})


def fastest(attempts: list[Attempt]) -> Attempt | None:
    """Of those that meet the target and are as fast as the fastest of them, see :func:`faster`, the one tried first.

    On a target whose time is not known: the first of the smallest of those with about the largest share quantized.
    """
    enough = [attempt for attempt in attempts if attempt.meets]
    shares = [attempt.quantized for attempt in enough if attempt.quantized is not None]
    if enough and len(shares) == len(enough):
        most = max(shares)
        enough = [a for a, share in zip(enough, shares, strict=True) if most - share <= NEARLY]
        least = min(attempt.bytes for attempt in enough)
        return next(attempt for attempt in enough if attempt.bytes <= least * SLOWER)
    time = min(map(_time, enough), default=0.0)
    return next((attempt for attempt in enough if _time(attempt) <= time * SLOWER), None)


def faster(one: Attempt, other: Attempt) -> bool:
    """Whether one is clearly faster than the other, by time.

    On a target whose time is not known that is the one with more of its work quantized, or else the smaller one.
    """
    if one.quantized is None or other.quantized is None:
        return _time(one) * SLOWER < _time(other)
    if abs(one.quantized - other.quantized) > NEARLY:
        return one.quantized > other.quantized
    return one.bytes * SLOWER < other.bytes


def hardly_faster(attempts: list[Attempt], chosen: Attempt) -> Attempt | None:
    """The fastest that meets the target, where by its figure alone that is another one than was chosen."""
    other = min((a for a in attempts if a.meets), key=lambda a: (_time(a), -(a.quantized or 0.0)), default=chosen)
    ahead = _time(other) < _time(chosen) or (other.quantized or 0.0) > (chosen.quantized or 0.0)
    return other if ahead and not faster(other, chosen) else None


def best(attempts: list[Attempt]) -> Attempt | None:
    """The first one of the highest metric."""
    made = [a for a in attempts if a.metric is not None]
    return max(made, key=lambda a: (a.metric, -a.number)) if made else None


def _time(attempt: Attempt) -> float:
    return 1.0 if attempt.time is None else attempt.time
