"""What each effort does: which algorithms run, and how many samples they need."""

from __future__ import annotations

from collections.abc import Sequence

from onnxq.calibration.statistics import KeptSample
from onnxq.options import Options

__all__ = [
    "TRIED",
    "algorithms_of",
    "few",
    "held_back",
    "samples_to_keep",
    "samples_to_verify",
    "to_judge_by",
    "to_learn_from",
]

TRIED = "best: "
"""How notes begin that say what effort ``best`` has tried."""
_VERIFIED = 8
_LEARNED_FROM = 64
_MANY = 16
"""Samples from which guards and judges are different ones."""


def algorithms_of(options: Options) -> tuple[str, ...]:
    """The algorithms that run, as the user would write them: those asked for, else those of the effort."""
    if options.algorithms:
        return options.algorithms
    return ("bias_correction",) if options.effort != "fast" and options.bias_correction else ()


def samples_to_keep(options: Options) -> int:
    """How many samples the statistics hold back."""
    if options.keep is not None:
        return options.keep
    return _LEARNED_FROM if options.effort == "best" or options.algorithms else _VERIFIED


def few(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that statistics hold back by default, of those that they do: what decides a plan at any effort."""
    while len(kept) > _VERIFIED:
        kept = kept[::2]
    return kept


def to_learn_from(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that algorithms learn from: every second one."""
    return kept[::2] if len(kept) > 1 else kept


def held_back(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that tell an algorithm whether what it learned is better: none that it learns from, if there are two.

    Where there are many, :func:`to_judge_by` are others, since what guards against a loss also favours a gain.
    """
    if len(kept) >= _MANY:
        return kept[1::4]
    return kept[1::2] if len(kept) > 1 else kept


def to_judge_by(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that results are compared on; where there are many, no algorithm has seen them."""
    return kept[3::4] if len(kept) >= _MANY else held_back(kept)


def samples_to_verify(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """At most 8 of the samples held back, of those that algorithms have not seen where there are more."""
    if len(kept) <= _VERIFIED:
        return kept
    judges = to_judge_by(kept)
    return judges[:: -(-len(judges) // _VERIFIED)]
