"""Changes to a float model, tried together and kept only where the quantized model gains by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import chosen
from onnxq.calibration.moved import Move
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.effort import algorithms_of
from onnxq.measuring.decibels import sqnr_of
from onnxq.measuring.noise import output_noise
from onnxq.measuring.score import standard_error
from onnxq.quantized import Quantized

__all__ = ["Change", "Outcome", "keep_what_helps"]

_CHEAP = ("bias_correction",)
"""Algorithms of the numbers stage that a trial runs, where they will run later."""
_JUDGES = 16
_TRIALS = 8
"""Most models that are quantized and run to find which changes help."""
_LEAST = 0.05
"""dB that changes must gain together."""
_DEVIATIONS = 1.0
"""Standard errors by which the gain, sample by sample, must differ from none."""
_EXACT = 1e-12
"""Noise over signal: what is less counts no more."""

Ratios = NDArray[np.float64]
Noise = Mapping[str, Ratios]
"""Output → noise over the mean signal, a number a sample."""


class Change(Protocol):
    """A change that leaves what the float model computes as it is, and is independent of the others."""

    def apply(self, draft: FloatDraft) -> Mapping[str, Move]:
        """Make it.

        Returns:
            Names of the tensors whose values have changed, or which are new, with what they were before.
        """


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the trials showed.

    Attributes:
        kept: positions of the changes that were kept.
        before: SQNR in dB of the quantized model without any on the samples held back, the mean over its float outputs.
        after: with those kept.
        chosen: the set that they are of; 0 is the first.
    """

    kept: tuple[int, ...]
    before: float
    after: float
    chosen: int = 0


def keep_what_helps(draft: FloatDraft, changes: Sequence[Change], *others: Sequence[Change]) -> Outcome:
    """Make changes, and undo those with which the quantized model is not better on the samples held back.

    All are tried together first, and so are all of each other set; the best set is kept. Where none helps, each half of
    the first set is tried by itself, and so on.

    Args:
        draft: left with the changes that were kept, its statistics true.
        changes: independent of each other.
        others: other sets to have in their place.

    Returns:
        What was kept, and in ``chosen`` of which set.
    """
    sets = [changes, *others]
    if not any(sets):
        return Outcome((), math.nan, math.nan)
    trials = _Trials(draft)
    together = [(trials.run(part), number, part) for number, part in enumerate(sets) if part]
    better = [tried for tried in together if trials.is_better(tried[0])]
    if better:
        best, number, part = max(better, key=lambda tried: _sqnr(tried[0].noise))
        trials.accept(best)
        return Outcome(tuple(range(len(part))), _sqnr(trials.start), _sqnr(best.noise), number)
    kept: list[int] = []
    queue = _halves(range(len(changes)))
    for _ in range(_TRIALS):
        if not queue:
            break
        half = queue.pop(0)
        tried = trials.run([changes[index] for index in half])
        if trials.is_better(tried):
            trials.accept(tried)
            kept += half
        else:
            queue += _halves(half)
    return Outcome(tuple(sorted(kept)), _sqnr(trials.start), _sqnr(trials.best))


def _halves(part: Sequence[int]) -> list[Sequence[int]]:
    half = len(part) // 2
    return [part[:half], part[half:]] if half else []


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    draft: FloatDraft
    noise: Noise | None


class _Trials:
    """Quantizes changed copies of a draft the way the draft itself was quantized, and keeps the best.

    Attributes:
        start: noise of the model without changes, at the outputs that give numbers there; the others judge nothing.
        best: noise with what was accepted.
    """

    def __init__(self, draft: FloatDraft) -> None:
        self._draft = draft
        self._choices = [c for c in chosen(algorithms_of(draft.options)) if c.name in _CHEAP]
        self._first = Decider(
            draft.model, draft.target, draft.options, draft.statistics, self._choices, draft.keep_float
        )
        found = _noise(draft, decide(self._first)) or {}
        self.start: Noise | None = {name: row for name, row in found.items() if np.isfinite(row).all()} or None
        self.best: Noise | None = self.start

    def run(self, changes: Sequence[Change]) -> _Tried:
        """Quantize and run a copy of the draft with changes on top of what was accepted."""
        now = self._draft
        copy = now.copy()
        changed = {name: move for change in changes for name, move in change.apply(copy).items()}
        if changed:
            copy.observe_again(changed, now)
        made = self._first.variant(self._choices, now.options, copy.model, copy.statistics, copy.keep_float)
        found: Noise | None = _noise(now, made.again().quantized)
        if found is not None and self.start is not None:
            found = {name: found[name] for name in self.start}
        return _Tried(copy, found)

    def is_better(self, tried: _Tried) -> bool:
        """Than what was accepted."""
        return _better(tried.noise, self.best)

    def accept(self, tried: _Tried) -> None:
        """Keep it."""
        draft = self._draft
        draft.take(tried.draft)
        self.best = tried.noise


def _noise(draft: FloatDraft, quantized: Quantized) -> Noise | None:
    """Noise at the float outputs, infinite where they give no numbers; None where the model does not run."""
    samples = draft.held
    step = -(-len(samples) // _JUDGES)
    found = output_noise(quantized, samples[step // 2 :: step], draft.options)
    if found is None:
        return None
    made = {name: of.noise / max(of.signal, 1e-300) for name, of in found.items() if math.isfinite(of.signal)}
    return {name: np.maximum(np.where(np.isnan(row), np.inf, row), _EXACT) for name, row in made.items()}


def _sqnr(noise: Noise | None) -> float:
    """The mean over the outputs, dB."""
    return float(np.mean([sqnr_of(float(row.mean())) for row in noise.values()])) if noise else -math.inf


def _better(noise: Noise | None, than: Noise | None) -> bool:
    """Whether the outputs gain, by more than chance would give: in noise, or in the share of it sample by sample.

    Args:
        noise: of a trial; of the same outputs and samples as that of the other.
        than: of the other, finite; None where it gives no numbers.
    """
    if than is None or not math.isfinite(_sqnr(noise)):
        return _sqnr(noise) > _sqnr(than)
    assert noise is not None  # it has a level
    now, before = (np.stack([of[name] for name in than]) for of in (noise, than))
    saved = ((before - now) / before.mean(axis=1, keepdims=True)).mean(axis=0)
    share = np.log(before / now).mean(axis=0)
    return _sqnr(noise) >= _sqnr(than) + _LEAST and (_beyond_chance(saved) or _beyond_chance(share))


def _beyond_chance(gains: Ratios) -> bool:
    return float(gains.mean()) > _DEVIATIONS * standard_error(gains)
