"""What is known of one tensor after running data through a model: exact extremes, moments, a histogram; mergeable.

None of it holds a choice of bits, symmetry or range method; the histogram is over the bit patterns (see
:mod:`onnxq.calibration.histogram`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.histogram import KEYS, SENTINEL, accumulate, key_edges, keys_of

__all__ = ["EMA_MOMENTUM", "SENTINEL", "TensorStatistics"]

EMA_MOMENTUM = 0.9
"""Weight of the past in the moving averages of a sample's minimum and maximum."""

_NEGATIVE = KEYS // 2  # keys from here on have the sign bit


@dataclass(slots=True, eq=False)
class TensorStatistics:
    """What is known of one tensor. Values that are NaN, infinite or mask sentinels are counted, and otherwise left out.

    Attributes:
        name: name of the tensor.
        count: values counted, over all samples.
        min: the smallest; 0.0 while ``count`` is 0.
        max: the largest.
        sum: sum of the values, float64.
        sum_abs: sum of their magnitudes.
        sum_squares: sum of their squares.
        nan: NaNs seen.
        inf: infinities seen.
        sentinels: finite values beyond 1e30 seen.
        masked: samples in which infinities or sentinels were seen.
        nan_sample: index of the first sample with a NaN, -1 if none.
        inf_sample: index of the first sample with an infinity, -1 if none.
        samples: samples in which the tensor had elements.
        averaged: samples in the moving averages: those with at least one value counted.
        ema_min: moving average of a sample's minimum: ``e = m e + (1 - m) min``, begun with the first one.
        ema_max: moving average of a sample's maximum.
        first_min: minimum of the first sample averaged, needed to append these statistics to others.
        first_max: maximum of the first sample averaged.
        counts: values by key, ``(16384,)`` int64.
    """

    name: str
    count: int = 0
    min: float = 0.0
    max: float = 0.0
    sum: float = 0.0
    sum_abs: float = 0.0
    sum_squares: float = 0.0
    nan: int = 0
    inf: int = 0
    sentinels: int = 0
    masked: int = 0
    nan_sample: int = -1
    inf_sample: int = -1
    samples: int = 0
    averaged: int = 0
    ema_min: float = 0.0
    ema_max: float = 0.0
    first_min: float = 0.0
    first_max: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(KEYS, np.int64), repr=False)

    @property
    def elements(self) -> int:
        """Values seen, counted or not."""
        return self.count + self.nan + self.inf + self.sentinels

    @property
    def mean(self) -> float:
        """Mean of the values, 0.0 if there is none."""
        return self.sum / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the values (of the population), 0.0 if there is none."""
        if not self.count:
            return 0.0
        return math.sqrt(max(self.sum_squares / self.count - self.mean**2, 0.0))

    def update(self, x: NDArray[np.float32], sample: int) -> None:
        """Add the values of one sample.

        Args:
            x: float32 values of any shape; an empty array (a branch that was not taken) changes nothing.
            sample: index of the sample.
        """
        if not x.size:
            return
        tally = accumulate(x, self.counts)
        self.samples += 1
        self.nan += tally.nan
        self.inf += tally.inf
        self.sentinels += tally.sentinels
        self.masked += bool(tally.inf or tally.sentinels)
        if tally.nan and self.nan_sample < 0:
            self.nan_sample = sample
        if tally.inf and self.inf_sample < 0:
            self.inf_sample = sample
        if not tally.count:
            return
        if self.count:
            self.min, self.max = min(self.min, tally.min), max(self.max, tally.max)
        else:
            self.min, self.max = tally.min, tally.max
        self.count += tally.count
        self.sum += tally.sum
        self.sum_abs += tally.sum_abs
        self.sum_squares += tally.sum_squares
        if self.averaged:
            self.ema_min += (1.0 - EMA_MOMENTUM) * (tally.min - self.ema_min)
            self.ema_max += (1.0 - EMA_MOMENTUM) * (tally.max - self.ema_max)
        else:
            self.ema_min, self.ema_max = tally.min, tally.max
            self.first_min, self.first_max = tally.min, tally.max
        self.averaged += 1

    def merge(self, other: TensorStatistics, samples_before: int = 0) -> None:
        """Append the samples of ``other``, as if they had been added one after the other.

        Counts and extremes are exact; sums and moving averages equal to rounding.

        Args:
            other: statistics of the same tensor, not modified.
            samples_before: what to add to its sample indices.
        """
        if other.count:
            self.min = min(self.min, other.min) if self.count else other.min
            self.max = max(self.max, other.max) if self.count else other.max
        if other.averaged:
            if self.averaged:
                fade = EMA_MOMENTUM**other.averaged
                self.ema_min = fade * (self.ema_min - other.first_min) + other.ema_min
                self.ema_max = fade * (self.ema_max - other.first_max) + other.ema_max
            else:
                self.ema_min, self.ema_max = other.ema_min, other.ema_max
                self.first_min, self.first_max = other.first_min, other.first_max
        if self.nan_sample < 0 <= other.nan_sample:
            self.nan_sample = other.nan_sample + samples_before
        if self.inf_sample < 0 <= other.inf_sample:
            self.inf_sample = other.inf_sample + samples_before
        sums = ("count", "sum", "sum_abs", "sum_squares", "nan", "inf", "sentinels", "masked", "samples", "averaged")
        for name in sums:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = self.counts + other.counts

    def clipped(self, low: float, high: float) -> TensorStatistics:
        """These statistics as they would be had every value been clipped; moments to the precision of the bins.

        Args:
            low: the least value, at most ``high``; may be infinite.
            high: the largest.
        """
        if not self.count or (low <= self.min and self.max <= high):
            return self
        lower, upper, counts = self.edges()
        middle = np.clip(0.5 * (lower + upper), low, high)
        keys = keys_of(middle.astype(np.float32))
        new = np.zeros(KEYS, np.int64)
        np.add.at(new, keys, counts)
        weights = counts.astype(np.float64)
        result = replace(self, counts=new)
        for name in ("min", "max", "ema_min", "ema_max", "first_min", "first_max"):
            setattr(result, name, min(max(getattr(self, name), low), high))
        result.sum, result.sum_abs = float(middle @ weights), float(np.abs(middle) @ weights)
        result.sum_squares = float(middle**2 @ weights)
        return result

    def edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """The bins that hold values, from the lowest to the highest.

        Returns:
            Lower and upper ends of each bin as real numbers, clamped to the exact extremes, and the values in it.
        """
        keys = np.flatnonzero(self.counts)
        split = int(np.searchsorted(keys, _NEGATIVE))
        keys = np.concatenate([keys[split:][::-1], keys[:split]])
        near, far = key_edges(keys)
        negative = keys >= _NEGATIVE
        lower = np.where(negative, -far, near)
        upper = np.where(negative, -near, far)
        lower, upper = (np.clip(edge, self.min, self.max) for edge in (lower, upper))
        return lower, upper, self.counts[keys]

    def bins(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Centers of the bins that hold values, ascending, and the values in each.

        The bin of zero (and of denormals next to it) has its center at exactly 0.0.
        """
        lower, upper, counts = self.edges()
        centers = 0.5 * (lower + upper)
        centers[np.abs(centers) < 2.0**-131] = 0.0
        return centers, counts
