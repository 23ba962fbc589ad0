"""How much of a signal a result keeps, sample by sample, and whether another one keeps more by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import KeptSample
from onnxq.measuring.decibels import sqnr_of
from onnxq.measuring.noise import output_noise
from onnxq.options import Options
from onnxq.quantized import Quantized

__all__ = ["Score", "score_of", "standard_error"]

_LEAST_GAIN = 0.1
"""dB at the worst output that a step must gain; less is within what other samples would change."""
_ROUNDING = float(np.finfo(np.float32).eps) ** 2
"""Noise over the mean signal that rounding to float32 leaves: of samples with less, none is better than another."""
_DEVIATIONS = 2.5
"""Standard errors by which the gain in dB, sample by sample, must differ from none."""


@dataclass(frozen=True)
class Score:
    """Noise over the mean signal for each float output and sample: output name → power ratios, one a sample.

    A sample of another shape than the float model's is all noise, see :func:`onnxq.measuring.noise.output_noise`.
    """

    noise: Mapping[str, NDArray[np.float64]]
    reshaped: bool = False

    @property
    def sqnr(self) -> dict[str, float]:
        """SQNR in dB of each output over all samples."""
        return {name: sqnr_of(float(ratios.mean())) for name, ratios in self.noise.items()}

    @property
    def worst(self) -> float:
        """SQNR in dB of the worst output."""
        return min(self.sqnr.values(), default=math.inf)

    def no_better_than(self, other: Score) -> str | None:
        """Why this is no better than another; ``None`` where it is better.

        Better is where the worst output gains, by more than chance would give, and the outputs on average do not lose.
        The answer is empty where the worst output does not gain at all, which its figure shows by itself.
        """
        if not self._comparable(other):
            return "it gives no numbers to compare" if self.noise and other.noise else ""
        mine, theirs = self.sqnr, other.sqnr
        worst, mean, chance = self._saved(other)
        gain = self.worst - other.worst
        if gain < _LEAST_GAIN:
            return "too little" if gain > 0 else ""
        if mean <= _DEVIATIONS * chance:
            return (
                f"within chance: {mean:.1f} dB a sample at {worst!r}, with a standard error of {chance:.1f} dB over "
                f"{len(other.noise[worst])} samples"
            )
        if sum(mine.values()) < sum(theirs.values()):
            most = min(theirs, key=lambda name: mine[name] - theirs[name])
            lost = theirs[most] - mine[most]
            return f"output {most!r} loses {lost:.1f} dB, and the outputs together more than is gained"
        return None

    def open(self, other: Score, share: float) -> bool:
        """Whether more samples may tell if this is better than another.

        That is so where the gain is within chance on the samples so far, but may be beyond it with all of them: their
        mean has a smaller standard error, and may be larger by one of now.

        Args:
            other: to compare with.
            share: of all samples there are, those that both were measured on.
        """
        if not self._comparable(other) or self.worst - other.worst < _LEAST_GAIN:
            return False
        _, mean, chance = self._saved(other)
        return chance * (_DEVIATIONS * math.sqrt(share) - 1.0) < mean <= _DEVIATIONS * chance

    def _comparable(self, other: Score) -> bool:
        return bool(self.noise and other.noise) and math.isfinite(self.worst)

    def _saved(self, other: Score) -> tuple[str, float, float]:
        """The other's worst output, and what is gained there: dB a sample, and their standard error."""
        worst = min(other.sqnr, key=other.sqnr.__getitem__)
        before, after = (np.maximum(score.noise[worst], _ROUNDING) for score in (other, self))
        saved = 10.0 * np.log10(before / after)
        return worst, float(saved.mean()), standard_error(saved)

    def joined(self, more: Score) -> Score:
        """With the samples of another one."""
        both = {n: np.concatenate([found, more.noise[n]]) for n, found in self.noise.items() if n in more.noise}
        return Score(both, self.reshaped or more.reshaped)


def score_of(quantized: Quantized, judges: Sequence[KeptSample], options: Options) -> Score:
    """The score of a quantized model on kept samples; all noise where it does not run.

    Args:
        quantized: the model.
        judges: with the float model's outputs.
        options: providers and the library of custom operators.
    """
    found = output_noise(quantized, judges, options)
    if found is None:
        floats = {n: None for sample in judges for n, values in sample.outputs.items() if values.dtype.kind == "f"}
        return Score({name: np.full(len(judges), np.inf) for name in floats})
    return Score(
        {name: of.noise / of.signal for name, of in found.items() if of.signal > 0},
        any(of.reshaped for of in found.values()),
    )


def standard_error(gains: NDArray[np.float64]) -> float:
    """Of the mean of a number a sample, (samples,): how far off it may be by chance; 0 of one, and of infinite ones."""
    if len(gains) < 2 or not np.isfinite(gains).all():
        return 0.0
    return float(gains.std(ddof=1)) / math.sqrt(len(gains))
