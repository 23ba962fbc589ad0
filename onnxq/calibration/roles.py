"""What each sample held back serves for: to decide, to learn from, to guard, to judge, to verify.

Positions count in cycles of a power of two, so long that there are at most 8 of them. The first sample of a cycle
decides a plan, the middle one verifies the result. Algorithms learn from the odd positions; the even ones guard what
was learned in the first half of a cycle, and judge results in the second. So those that verify are the same whether 16
samples of some data were held back or 64, and no algorithm has learned from them.

Of 9 to 16 samples, in cycles of two, those that decide are also learned from, and the others guard, judge and verify.
Of 8 or fewer all decide and verify, every second one is learned from, and the others guard and judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxq.calibration.statistics import KeptSample

__all__ = ["few", "held_back", "samples_to_verify", "spread", "to_judge_by", "to_learn_from"]

_FEW = 8
_HALVES = 2
"""Samples of a cycle where one half learns, and the other one guards and judges."""


def few(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """At most 8 samples that decide a plan and what runs at any effort."""
    return kept[:: _cycle(kept)]


def to_learn_from(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that algorithms learn from: every second one."""
    if len(kept) < 2:
        return kept
    return kept[1::2] if _cycle(kept) > _HALVES else kept[::2]


def held_back(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that tell an algorithm whether what it learned is better: none that it learns from, if there are two.

    Where there are many, :func:`to_judge_by` are others, since what guards against a loss also favours a gain.
    """
    if len(kept) < 2:
        return kept
    cycle = _cycle(kept)
    if cycle <= _HALVES:
        return kept[1::2]
    return [sample for k, sample in enumerate(kept) if k % 2 == 0 and k % cycle < cycle // 2]


def to_judge_by(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that results are compared on; where there are many, no algorithm has seen them."""
    cycle = _cycle(kept)
    if cycle <= _HALVES:
        return held_back(kept)
    return [sample for k, sample in enumerate(kept) if k % 2 == 0 and k % cycle >= cycle // 2]


def samples_to_verify(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """At most 8 of the samples that results are compared on; of 8 or fewer held back, all."""
    cycle = _cycle(kept)
    return kept[cycle // 2 :: cycle]


def spread(samples: Sequence[KeptSample], most: int) -> Sequence[KeptSample]:
    """At most so many of some samples, evenly over all of them: data may be sorted."""
    if len(samples) <= most:
        return samples
    return [samples[k * len(samples) // most] for k in range(most)]


def _cycle(kept: Sequence[KeptSample]) -> int:
    """The power of two of which at most 8 fit into the samples."""
    cycle = 1
    while len(kept) > _FEW * cycle:
        cycle *= 2
    return cycle
