"""What each effort does: which algorithms run, and how many samples they need."""

from __future__ import annotations

from collections.abc import Sequence

from onnxq.calibration.statistics import KeptSample
from onnxq.options import Options

__all__ = ["algorithms_of", "held_back", "samples_to_keep", "samples_to_verify"]

_VERIFIED = 8
_LEARNED_FROM = 64


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


def held_back(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that algorithms do not learn from: every second one, all where there is one only."""
    return kept[1::2] if len(kept) > 1 else kept


def samples_to_verify(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """At most 8 of the samples held back, of those that algorithms do not learn from where there are more."""
    if len(kept) <= _VERIFIED:
        return kept
    held = held_back(kept)
    return held[:: -(-len(held) // _VERIFIED)]
