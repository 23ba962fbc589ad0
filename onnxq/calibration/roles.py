"""What each sample held back serves for: to decide, to learn from, to guard, to judge, to verify.

- Some **decide** a plan, at most 8 of them.
- Algorithms **learn** from some, and others **guard**: they tell an algorithm whether what it learned is better.
- Some **judge**: results are compared on them. Where there are enough, no algorithm has seen these in any way.
- What decides nothing and is not learned from **verifies**. The figures that a user is told are theirs, and 8 would be
  too few: of 42 outputs of real models their SQNR was more than 3 dB above that of other data at nine, that of 24
  samples at five.

Who does what: samples count in cycles of a power of two, so long that there are at most 8 of them, and in pairs of
neighbours. The *first* of a cycle or pair is the one whose lot is the smallest, see :mod:`onnxq.calibration.chance`.

- Of 17 or more, the first of each cycle decides. The second of each pair is learned from. The firsts of pairs guard in
  the half of the cycle that holds the one that decides, and judge in the other half. Of 32 samples 24 verify where
  nothing is learned, else 16 of 64, which are among them. Once it is decided what to keep, weights of few bits are
  rounded anew by the guards as well: 48 of 64 samples.
- Of 9 to 16, the first of each pair decides and is learned from, and the second guards, judges and verifies.
- Of 8 or fewer all decide and verify; the first of each pair is learned from, and the second guards and judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from onnxq.calibration.chance import drawn_of, lot
from onnxq.calibration.statistics import KeptSample

__all__ = [
    "exchanged",
    "few",
    "guards_teach",
    "held_back",
    "samples_to_verify",
    "spread",
    "to_judge_by",
    "to_learn_from",
]

_Sample = TypeVar("_Sample")

_FEW = 8
_HALVES = 2
"""Samples of a cycle where one half learns, and the other one guards and judges."""
_PAIRS = 4
"""Samples of a cycle of pairs; of longer ones, as many parts verify, of which a first stands for each."""


def few(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """At most 8 samples that decide a plan and what runs at any effort."""
    return [_first(cycle) for cycle in _cut(kept, _cycle(kept))]


def to_learn_from(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that algorithms learn from: every second one."""
    if len(kept) < 2:
        return kept
    return _second(kept) if _cycle(kept) > _HALVES else _firsts(kept)


def held_back(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that tell an algorithm whether what it learned is better: none that it learns from, if there are two.

    Where there are many, :func:`to_judge_by` are others, since what guards against a loss also favours a gain.
    """
    if len(kept) < 2:
        return kept
    if _cycle(kept) <= _HALVES:
        return _second(kept)
    return [sample for mine, _ in _halves(kept) for sample in _firsts(mine)]


def guards_teach(kept: Sequence[KeptSample]) -> bool:
    """Whether algorithms may learn from :func:`held_back` too, once these have told: others judge and verify."""
    return _cycle(kept) > _HALVES


def to_judge_by(kept: Sequence[KeptSample]) -> Sequence[KeptSample]:
    """The samples that results are compared on; where there are many, no algorithm has seen them."""
    if _cycle(kept) <= _HALVES:
        return held_back(kept)
    return [sample for _, other in _halves(kept) for sample in _firsts(other)]


def exchanged(kept: Sequence[KeptSample]) -> Iterator[tuple[list[KeptSample], Sequence[KeptSample]]]:
    """The same samples with others in each role, and those that judge then and did not before.

    Within each pair the samples change places, then the halves of each cycle do, then both: what learns in one
    arrangement judges in another one. A sample takes over the index of the one whose place it takes. Samples as they
    are come first; arrangements in which nobody judges who has not judged before are left out.
    """
    judged: set[int] = set()
    half = max(_cycle(kept) // 2, 1)
    for distances in ((), (1,), (half,), (1, half)):
        order = list(range(len(kept)))
        for distance in dict.fromkeys(distances):
            order = _swapped(order, distance)
        arranged = [replace(kept[k], index=place.index) for k, place in zip(order, kept, strict=True)]
        source = {id(sample): k for sample, k in zip(arranged, order, strict=True)}
        judges = [sample for sample in to_judge_by(arranged) if source[id(sample)] not in judged]
        if judges:
            judged.update(source[id(sample)] for sample in judges)
            yield arranged, judges


def _swapped(order: Sequence[int], distance: int) -> list[int]:
    """Neighbouring runs of some length, each in the other one's place; what has no counterpart stays."""
    result = list(order)
    for at in range(0, len(order), 2 * distance):
        for k in range(at, min(at + distance, len(order) - distance)):
            result[k], result[k + distance] = result[k + distance], result[k]
    return result


def samples_to_verify(kept: Sequence[KeptSample], learned: bool, at_home: bool = True) -> Sequence[KeptSample]:
    """At most 24 samples that no plan was decided by; of 8 or fewer held back, all.

    Args:
        kept: the samples held back.
        learned: whether algorithms may have learned from some: from none of these.
        at_home: whether the result is for onnxruntime. Another target's is simulated, which takes three times a run of
            the float model, and often several are made: then at most 8.
    """
    cycle = _cycle(kept)
    if cycle == 1:
        return kept
    if not at_home:
        return spread(samples_to_verify(kept, learned), _FEW)
    part = max(cycle // _PAIRS, 2 if learned and cycle > _HALVES else 1)
    taken = {sample.index for sample in few(kept)}
    if learned and guards_teach(kept):
        taken |= {sample.index for sample in held_back(kept)}
    return [sample for of in _cut(kept, part) if (sample := _first(of)).index not in taken]


def spread(samples: Sequence[_Sample], most: int) -> Sequence[_Sample]:
    """At most so many of some samples, over all of them by lot: data may be sorted, and may have a rhythm."""
    if len(samples) <= most:
        return samples
    return [samples[k] for k in drawn_of(len(samples), most)]


def _cycle(kept: Sequence[KeptSample]) -> int:
    """The power of two of which at most 8 fit into the samples."""
    cycle = 1
    while len(kept) > _FEW * cycle:
        cycle *= 2
    return cycle


def _cut(kept: Sequence[KeptSample], size: int) -> list[Sequence[KeptSample]]:
    return [kept[at : at + size] for at in range(0, len(kept), size)]


def _first(samples: Sequence[KeptSample]) -> KeptSample:
    """The one with the smallest lot."""
    return min(samples, key=lambda sample: lot(sample.index))


def _firsts(kept: Sequence[KeptSample]) -> list[KeptSample]:
    """The first of every pair."""
    return [_first(pair) for pair in _cut(kept, 2)]


def _second(kept: Sequence[KeptSample]) -> list[KeptSample]:
    """The other of every pair."""
    return [sample for pair in _cut(kept, 2) for sample in pair if sample is not _first(pair)]


def _halves(kept: Sequence[KeptSample]) -> Iterator[tuple[Sequence[KeptSample], Sequence[KeptSample]]]:
    """Of every cycle the half that holds its first, and the other one."""
    size = _cycle(kept)
    for cycle in _cut(kept, size):
        one, other = cycle[: size // 2], cycle[size // 2 :]
        yield (one, other) if any(sample is _first(cycle) for sample in one) else (other, one)
