"""Statistics over all data of a tensor that an algorithm has changed, of which only the kept samples can be run again.

Known are the tensor before the change on the kept samples and on all data, and after it on the kept samples. What the
other samples hold is taken to be to the kept ones as it was before: the value of rank u among the positive ones is ::

    after_all(u) = after_kept(u) * before_all(u) / before_kept(u)

and so among the negative ones. That is exact where all channels were scaled alike, and close where samples differ in
loudness; a channel that is loud in none of the kept samples is not seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.histogram import KEYS, SENTINEL, key_edges, keys_of
from onnxq.calibration.tensor_statistics import TensorStatistics

__all__ = ["Move", "over_all"]

_HALF = KEYS // 2  # keys from here on have the sign bit

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """What became of a tensor, channel by channel: ``max(source / divisor - shift, least)``, turned.

    Attributes:
        source: name of the tensor before.
        divisor: (C,) positive, or 1.0.
        shift: (C,), or 0.0.
        least: smallest value left.
        rotation: a digest of how it was turned, without the factors of a normalization that went into the layers
            behind it; empty where it was not.
    """

    source: str
    divisor: Floats | float = 1.0
    shift: Floats | float = 0.0
    least: float = -math.inf
    rotation: bytes = b""


def over_all(after: TensorStatistics, before: TensorStatistics, every: TensorStatistics) -> TensorStatistics:
    """Statistics of a changed tensor over all data.

    Args:
        after: of it on the kept samples.
        before: of the tensor before the change, on the kept samples.
        every: of the tensor before the change, on all data.

    Returns:
        New statistics, with the name of ``after``.
    """
    if not after.count or not before.count or not every.count:
        return after
    gain = _peak(after) / _peak(before) if _peak(before) else 1.0
    low, high = _end(after.min, before.min, every.min, gain), -_end(-after.max, -before.max, -every.max, gain)
    counts = np.zeros(KEYS, np.int64)
    found: list[tuple[Floats, Numbers]] = []
    for start in (0, _HALF):
        part = slice(start + 1, start + _HALF)
        total = _share(int(every.counts[part].sum()), int(before.counts[part].sum()), int(after.counts[part].sum()))
        values, number = _values(_Side(after, start), _Side(before, start), _Side(every, start), total, gain)
        values = np.clip(-values if start else values, low, high)
        found.append((values, number))
    zeros = [int(stats.counts[[0, _HALF]].sum()) for stats in (every, before, after)]
    found.append((np.zeros(1), np.array([_share(*zeros)])))
    values, number = (np.concatenate(parts) for parts in zip(*found, strict=True))
    values, number = _raised(values, number, high)
    values, number = _raised(-values, number, -low)
    values = -values
    plain = np.clip(values, -SENTINEL, SENTINEL).astype(np.float32) + np.float32(0.0)  # no negative zero
    np.add.at(counts, keys_of(plain), number)
    squares = float(np.square(values) @ number)
    return replace(
        every,
        name=after.name,
        count=int(number.sum()),
        min=low,
        max=high,
        sum=float(values @ number),
        sum_abs=float(np.abs(values) @ number),
        sum_squares=squares,
        ema_min=_clipped(_end(after.ema_min, before.ema_min, every.ema_min, gain), low, high),
        ema_max=_clipped(-_end(-after.ema_max, -before.ema_max, -every.ema_max, gain), low, high),
        first_min=_clipped(after.first_min, low, high),
        first_max=_clipped(after.first_max, low, high),
        counts=counts,
    )


class _Side:
    """The magnitudes of one sign: how many there are, and that of any rank.

    Args:
        stats: of a tensor.
        start: key of the zero of that sign.
    """

    def __init__(self, stats: TensorStatistics, start: int) -> None:
        keys = np.flatnonzero(stats.counts[start + 1 : start + _HALF]) + start + 1
        numbers = stats.counts[keys]
        lower, upper = key_edges(keys)
        most = -stats.min if start else stats.max
        least = max(-stats.max if start else stats.min, 0.0)
        self.total = int(numbers.sum())
        self.ranks = np.concatenate([[0], np.cumsum(numbers)]) / max(self.total, 1)
        self._lower, self._upper = (np.clip(edge, least, most) for edge in (lower, upper))

    def at(self, ranks: Floats) -> Floats:
        """The magnitudes of ranks from 0 to 1, none of them where bins meet."""
        bins = np.clip(np.searchsorted(self.ranks, ranks) - 1, 0, len(self._lower) - 1)
        inside = (ranks - self.ranks[bins]) / (self.ranks[bins + 1] - self.ranks[bins])
        found: Floats = self._lower[bins] + inside * (self._upper[bins] - self._lower[bins])
        return found


def _values(after: _Side, before: _Side, every: _Side, total: int, gain: float) -> tuple[Floats, Numbers]:
    """Magnitudes of one sign, and how many there are of each."""
    sides = [side for side in (after, before, every) if side.total]
    if not total or not sides:
        return np.zeros(0), np.zeros(0, np.int64)
    cuts = np.unique(np.concatenate([side.ranks for side in sides]))
    numbers = np.diff(np.rint(cuts * total).astype(np.int64))
    ranks = (0.5 * (cuts[1:] + cuts[:-1]))[numbers > 0]
    if not after.total:
        values = gain * every.at(ranks)
    elif not before.total or not every.total:
        values = after.at(ranks)
    else:
        values = after.at(ranks) * every.at(ranks) / before.at(ranks)
    return values, numbers[numbers > 0]


def _share(every: int, before: int, after: int) -> int:
    """How many there are after the change among all, by those on the kept samples."""
    return round(every * after / before) if before else every


def _end(after: float, before: float, every: float, gain: float) -> float:
    """The lower end over all data; the kept samples' if that of all was no lower before the change."""
    if every >= before:
        return after
    if after * before > 0.0 and before * every > 0.0:
        return min(after, after * every / before)
    return min(after, gain * every)


def _peak(stats: TensorStatistics) -> float:
    return max(-stats.min, stats.max)


def _clipped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _raised(values: Floats, numbers: Numbers, end: float) -> tuple[Floats, Numbers]:
    """Values of which the largest one is at the end."""
    numbers = numbers.copy()
    held = np.flatnonzero(numbers)
    numbers[held[np.argmax(values[held])]] -= 1
    return np.append(values, end), np.append(numbers, 1)
