"""Changes to a float model, tried together and kept only where the quantized model gains by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.choice import chosen
from onnxq.algorithms.draft import FloatDraft
from onnxq.calibration.statistics import KeptSample
from onnxq.decide import Decider
from onnxq.effort import algorithms_of, held_back
from onnxq.errors import ExecutionError
from onnxq.quantized import Quantized
from onnxq.session import Session

__all__ = ["Change", "Outcome", "fitting", "held", "keep_what_helps"]

_CHEAP = ("bias_correction",)
"""Algorithms of the numbers stage that a trial runs, where they will run later."""
_JUDGES = 16
_TRIALS = 9
"""Most models that are quantized and run to find which changes help."""
_LEAST = 0.05
"""dB that changes must gain together."""
_DEVIATIONS = 1.0
"""Standard errors by which the gain, sample by sample, must differ from none."""
_EXACT = 1e-12
"""Noise over signal: what is less counts no more."""

Ratios = NDArray[np.float64]


class Change(Protocol):
    """A change that leaves what the float model computes as it is, and is independent of the others."""

    def apply(self, draft: FloatDraft) -> list[str]:
        """Make it.

        Returns:
            Names of the tensors whose values have changed, or which are new.
        """


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the trials showed.

    Attributes:
        kept: positions of the changes that were kept.
        before: SQNR in dB of the quantized model without any on the samples held back, the mean over its float outputs.
        after: with those kept.
    """

    kept: tuple[int, ...]
    before: float
    after: float


def fitting(draft: FloatDraft) -> Sequence[KeptSample]:
    """Kept samples to learn from: all but those of :func:`held`."""
    kept = draft.statistics.kept
    return kept[::2] if len(kept) > 1 else kept


def held(draft: FloatDraft) -> Sequence[KeptSample]:
    """Kept samples that tell whether what was learned is better; the others' neighbours."""
    return held_back(draft.statistics.kept)


def keep_what_helps(draft: FloatDraft, changes: Sequence[Change]) -> Outcome:
    """Make changes, and undo those with which the quantized model is not better on the samples held back.

    All are tried together first; where that does not help, each half by itself, and so on.

    Args:
        draft: left with the changes that were kept, its statistics true.
        changes: independent of each other.
    """
    if not changes:
        return Outcome((), math.nan, math.nan)
    choices = [c for c in chosen(algorithms_of(draft.options)) if c.name in _CHEAP]
    first = Decider(draft.model, draft.target, draft.options, draft.statistics, choices, "", draft.keep_float)
    start = best = _noise(draft, first.decide())
    kept: list[int] = []
    queue = [list(range(len(changes)))]
    for _ in range(_TRIALS):
        if not queue:
            break
        part = queue.pop(0)
        tried = FloatDraft(
            draft.model.clone(), draft.target, draft.options, draft.statistics, keep_float={**draft.keep_float}
        )
        changed = [name for index in part for name in changes[index].apply(tried)]
        if changed:
            tried.observe_again(list(dict.fromkeys(changed)))
        variant = first.variant(choices, draft.options, tried.model, tried.statistics, tried.keep_float)
        noise = _noise(draft, variant.again()[0])
        if _better(noise, best):
            best = noise
            kept += part
            draft.model, draft.statistics, draft.keep_float = tried.model, tried.statistics, tried.keep_float
        elif len(part) > 1:
            half = len(part) // 2
            queue += [part[:half], part[half:]]
    return Outcome(tuple(sorted(kept)), _sqnr(start), _sqnr(best))


def _noise(draft: FloatDraft, quantized: Quantized) -> Ratios | None:
    """Noise over mean signal, (outputs, samples), for the float outputs; None where the model does not run."""
    options = draft.options
    samples = held(draft)
    step = -(-len(samples) // _JUDGES)
    noise: dict[str, list[float]] = {}
    signal: dict[str, list[float]] = {}
    try:
        session = Session(
            quantized.rendered(), providers=options.providers, custom_op_library=options.custom_op_library
        )
        for sample in samples[step // 2 :: step]:
            got = session.run(sample.feeds)
            for name, values in sample.outputs.items():
                if values.dtype.kind == "f" and values.size and got[name].shape == values.shape:
                    exact = values.astype(np.float64)
                    noise.setdefault(name, []).append(float(np.mean(np.square(got[name] - exact))))
                    signal.setdefault(name, []).append(float(np.mean(np.square(exact))))
    except ExecutionError:
        return None
    made = [np.array(noise[n]) / max(float(np.mean(s)), 1e-300) for n, s in signal.items() if len(s) == len(noise[n])]
    longest = max((len(row) for row in made), default=0)
    rows = [row for row in made if len(row) == longest and np.isfinite(row).all()]
    return np.maximum(np.stack(rows), _EXACT) if rows else None


def _sqnr(noise: Ratios | None) -> float:
    return -math.inf if noise is None else float(np.mean(-10.0 * np.log10(noise.mean(axis=1))))


def _better(noise: Ratios | None, than: Ratios | None) -> bool:
    """Whether the outputs gain, and their mean by more than chance."""
    if noise is None:
        return False
    if than is None or noise.shape != than.shape:
        return _sqnr(noise) > _sqnr(than)
    saved = ((than - noise) / than.mean(axis=1, keepdims=True)).mean(axis=0)
    chance = float(saved.std(ddof=1)) / math.sqrt(len(saved)) if len(saved) > 1 else 0.0
    return _sqnr(noise) >= _sqnr(than) + _LEAST and float(saved.mean()) > _DEVIATIONS * chance
