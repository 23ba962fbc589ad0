"""How far a tensor is from its reference: SQNR, cosine, maximum error, agreement. Streaming, float64.

SQNR = 10·log10(Σ r² / Σ (r - g)²) in dB, for reference r and result g (signal-to-quantization-noise ratio; e.g.
Widrow & Kollár, Quantization Noise, 2008, ch. 1). The mean-removed SQNR takes both after subtracting their own means:
10·log10(var r / var (r - g)). Higher than the plain one says that the error is mostly a shift; much lower says that a
constant offset of the signal hides the error.

A sample whose reference is nothing but zeros has no signal of its own: what the result makes of it is held against the
mean signal of all samples, so that the rounding of a dark picture does not pass for the worst of all.

A result of another shape than its reference has no SQNR. Where models are told apart by their figures it must cost them
all the same: such a sample counts there as an error of twice the signal, which is as far as numbers of its size can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxq.calibration.histogram import SENTINEL
from onnxq.measuring.decibels import sqnr_of
from onnxq.measuring.mask_values import are_numbers, fill_of, is_filled
from onnxq.measuring.moments import Moments, dot

__all__ = [
    "WRONG",
    "ErrorMeter",
    "Errors",
    "jsonable",
    "kept_signal",
    "sqnr",
]

_CHUNK = 1 << 15
_COUNTS = ("samples", "elements", "skipped", "broken", "reshaped")
_CONSTANT = 40.0
"""dB between the plain and the mean-removed SQNR, from which on a signal that varies so little counts as constant."""
WRONG = 4.0
"""Noise over signal of a sample of another shape: what ``|r - g|² <= (|r| + |g|)²`` allows for ``|g| = |r|``."""


@dataclass(frozen=True)
class Errors:
    """What `ErrorMeter` found. Decibels may be ±inf; fields that do not apply are NaN (or None for an index).

    Attributes:
        samples: number of samples compared.
        elements: number of elements compared, summed over samples.
        sqnr: of all elements of all samples together, dB.
        sqnr_centred: the same after removing means, dB.
        worst: lowest SQNR of a sample, dB; of a sample of zeros see the head of this module.
        worst_sample: index of that sample.
        median: median of the samples' SQNR, dB.
        uncertainty: standard error of ``sqnr`` in dB, by how much the samples differ: what as many others would give.
            It is at most some 4 dB, where one sample has all the noise; others may then give anything. NaN for one.
        cosine: cosine of the angle between all reference and all result elements.
        max_error: largest |r - g|.
        max_error_sample: index of the sample that has it.
        peak: largest |r|.
        agreement: share of elements that are equal; the only measure of integer, boolean and string tensors.
        skipped: elements whose reference is NaN, infinite or a mask (|r| > 1e30, or see ``mask_values``); left out.
        broken: elements that are NaN or infinite in the result only; they make the SQNR -inf.
        reshaped: samples whose result has another shape than the reference; no figure but ``score`` has them.
        score: what models are compared by: ``sqnr`` with the samples of another shape as noise, see the head of this
            module, dB. Of a float tensor never NaN: infinite where there is nothing to compare.
        drawn: random numbers are in both: two draws were compared, and no figure judges a model.
    """

    samples: int = 0
    elements: int = 0
    sqnr: float = math.nan
    sqnr_centred: float = math.nan
    worst: float = math.nan
    worst_sample: int | None = None
    median: float = math.nan
    uncertainty: float = math.nan
    cosine: float = math.nan
    max_error: float = math.nan
    max_error_sample: int | None = None
    peak: float = math.nan
    agreement: float = math.nan
    skipped: int = 0
    broken: int = 0
    reshaped: int = 0
    score: float = math.nan
    drawn: bool = False

    @property
    def level(self) -> float:
        """SQNR in dB of the samples that have the reference's shape; ``score`` where there is none."""
        return self.score if math.isnan(self.sqnr) else self.sqnr

    def to_dict(self) -> dict[str, object]:
        """For JSON: NaN becomes None, infinities the strings ``"inf"`` and ``"-inf"``."""
        return {name: jsonable(value) for name, value in vars(self).items()}


def jsonable(value: object) -> object:
    """A number as strict JSON has it: NaN → None, infinities → ``"inf"``, ``"-inf"``; numpy scalars → Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


@dataclass
class ErrorMeter:
    """Takes pairs of tensors, one sample at a time; memory does not grow but for one number a sample."""

    _signal: Moments = field(default_factory=Moments)
    _noise: Moments = field(default_factory=Moments)
    _rr: float = 0.0
    _gg: float = 0.0
    _rg: float = 0.0
    _ee: float = 0.0
    _peak: float = 0.0
    _max_error: float = 0.0
    _max_error_sample: int | None = None
    _equal: int = 0
    _elements: int = 0
    _skipped: int = 0
    _broken: int = 0
    _reshaped: int = 0
    _lost: float = 0.0
    """Sum of the squared references of samples of another shape."""
    _float: bool = True
    _by_sample: list[tuple[int, bool, float, float]] = field(default_factory=list)
    """Of each sample: its index, whether it is broken, and the sums of its squared references and errors."""
    _samples: int = 0

    def update(self, reference: np.ndarray, result: np.ndarray, sample: int | None = None) -> None:
        """Compare one sample.

        Args:
            reference: the float model's tensor, any shape and type.
            result: the quantized model's; one of another shape is counted.
            sample: index of the sample; counted from 0 if None.
        """
        reference, result = np.asarray(reference), np.asarray(result)
        sample = self._samples if sample is None else sample
        self._samples += 1
        self._float &= _is_float(reference.dtype)
        if reference.shape != result.shape:
            self._reshaped += 1
            self._lost += _power(reference) if self._float else 0.0
            return
        if not self._float:
            self._equal += int(np.count_nonzero(reference == result))
            self._elements += reference.size
            return
        r_flat, g_flat = reference.reshape(-1), result.reshape(-1)
        rr, ee, fill = 0.0, 0.0, fill_of(r_flat)
        broken = compared = 0
        for start in range(0, r_flat.size, _CHUNK):
            piece = slice(start, start + _CHUNK)
            chunk_rr, chunk_ee, numbers, bad = self._take(r_flat[piece], g_flat[piece], sample, fill)
            rr += chunk_rr
            ee += chunk_ee
            compared += numbers
            broken += bad
        self._rr += rr
        self._ee += ee
        self._broken += broken
        self._elements += compared + broken
        if compared or broken:
            self._by_sample.append((sample, bool(broken), rr, ee))

    def _take(
        self, reference: np.ndarray, result: np.ndarray, sample: int, fill: float | None
    ) -> tuple[float, float, int, int]:
        """Add a piece of a sample to what is summed up over all samples; ``fill`` stands for masked in it.

        Returns:
            What is summed up of this sample: power of the signal and of the noise, numbers compared, and numbers that
            only the reference has.
        """
        r, g = reference.astype(np.float64), result.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities on both sides, sorted out below
            e = r - g
        broken = 0
        peak, worst = float(np.abs(r).max()), float(np.abs(e).max())
        if not (peak <= SENTINEL and math.isfinite(worst) and fill is None):
            use = np.isfinite(r) & (np.abs(r) <= SENTINEL)
            use &= True if fill is None else ~is_filled(r, g, fill)
            bad = use & ~np.isfinite(g)
            broken = int(np.count_nonzero(bad))
            self._skipped += int(r.size - np.count_nonzero(use))
            use &= ~bad
            r, g, e = r[use], g[use], e[use]
            if not r.size:
                return 0.0, 0.0, 0, broken
            peak, worst = float(np.abs(r).max()), float(np.abs(e).max())
        rr, ee = dot(r, r), dot(e, e)
        self._signal.add(r, rr)
        self._noise.add(e, ee)
        self._gg += dot(g, g)
        self._rg += dot(r, g)
        self._equal += r.size - int(np.count_nonzero(e))
        self._peak = max(self._peak, peak)
        if worst > self._max_error or self._max_error_sample is None:
            self._max_error, self._max_error_sample = worst, sample
        return rr, ee, r.size, broken

    def result(self) -> Errors:
        """The figures over all samples so far."""
        counts: dict[str, Any] = {n: getattr(self, f"_{n}") for n in _COUNTS}
        score = self._score()
        if not self._elements:
            return Errors(**counts, score=score)
        agreement = self._equal / self._elements
        if not self._float:
            return Errors(**counts, agreement=agreement)
        levels = self._levels()
        worst = min(levels)
        worst_sample = self._by_sample[levels.index(worst)][0]
        norm = math.sqrt(self._rr) * math.sqrt(self._gg)
        both_zero = self._rr == 0.0 and self._gg == 0.0
        return Errors(
            **counts,
            sqnr=-math.inf if self._broken else sqnr_of(self._ee, self._rr),
            sqnr_centred=-math.inf if self._broken else sqnr_of(self._noise.centred, self._signal.centred),
            worst=worst,
            worst_sample=worst_sample,
            median=_median(levels),
            uncertainty=math.nan if self._broken else self._uncertainty(),
            cosine=1.0 if both_zero else self._rg / norm if norm else 0.0,
            max_error=math.inf if self._broken else self._max_error,
            max_error_sample=worst_sample if self._broken else self._max_error_sample,
            peak=self._peak,
            agreement=agreement,
            score=score,
        )

    def _levels(self) -> list[float]:
        """SQNR of each sample in dB; one of zeros is held against the mean signal of all."""
        usual = self._rr / len(self._by_sample)
        return [-math.inf if broken else sqnr_of(ee, rr or usual) for _, broken, rr, ee in self._by_sample]

    def _score(self) -> float:
        if not self._float or not self._samples:
            return math.nan
        if self._broken:
            return -math.inf
        signal = self._rr + self._lost
        share = self._reshaped / self._samples
        return sqnr_of(self._ee + WRONG * share * signal, signal) if signal or not share else -math.inf

    def _uncertainty(self) -> float:
        """Standard error of the ratio of noise to signal (Cochran, Sampling Techniques, 1977, equation 2.39), in dB."""
        count = len(self._by_sample)
        if count < 2 or not self._rr or not self._ee:
            return math.nan
        ratio = self._ee / self._rr
        squares = sum((ee - ratio * rr) ** 2 for _, _, rr, ee in self._by_sample)
        return 10 / math.log(10) * math.sqrt(count / (count - 1) * squares) / self._ee


def _median(values: list[float]) -> float:
    """The median; of an even number the lower middle one when an infinity is involved."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) / 2 if math.isfinite(low) and math.isfinite(high) else low


def _power(values: np.ndarray) -> float:
    """Sum of the squares of what is a number and no mask."""
    flat = values.reshape(-1).astype(np.float64)
    flat = flat[are_numbers(flat)]
    return dot(flat, flat)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8"))


def sqnr(reference: np.ndarray, result: np.ndarray) -> float:
    """SQNR of one pair of tensors in dB; see the head of this module."""
    meter = ErrorMeter()
    meter.update(reference, result)
    return meter.result().sqnr


def kept_signal(errors: Errors) -> float:
    """The SQNR in dB of what varies in an output: the mean-removed one where that is lower.

    Of an output that is constant but for rounding, nothing varies that could be lost: the plain one. Where all samples
    have another shape, the score.
    """
    if math.isnan(errors.sqnr):
        return errors.score
    if errors.sqnr - errors.sqnr_centred > _CONSTANT:
        return errors.sqnr
    return min(errors.sqnr, errors.sqnr_centred)
