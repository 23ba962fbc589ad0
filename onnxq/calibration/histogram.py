"""Count float32 values by the upper 14 bits of their pattern, and add up moments, in one pass.

The key of a value is its bit pattern shifted right by 18: sign, exponent and 5 bits of mantissa. That is a histogram
with logarithmic bins, 32 an octave, over the whole range of float32, so no range need be known beforehand.

Two implementations give bit-equal results: a C extension, and NumPy where that extension was not built.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.process.compiled import compiled

__all__ = ["KERNEL", "KEYS", "SENTINEL", "Tally", "accumulate", "key_edges", "keys_of"]

KEYS = 1 << 14
"""Number of bins."""

SENTINEL = 1e30
"""Finite values of larger magnitude stand for minus infinity in a mask; they are counted apart."""


_histogram = compiled("onnxq.calibration._histogram")

KERNEL = "numpy" if _histogram is None else "c"
"""Which implementation is in use."""

_local = threading.local()
_SCRATCH = 4 * (KEYS + 272)
_LANES = 16
_SHIFT = 18
_CHUNK = 1 << 16  # elements, a multiple of the lanes
_SENTINEL_BITS = int(np.array(SENTINEL, np.float32).view(np.uint32))
_INFINITY_BITS = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Tally:
    """What one pass over values found; the fields but the last three speak of values that were counted.

    Attributes:
        count: values counted.
        min: the smallest, 0.0 if none was counted.
        max: the largest, 0.0 if none was counted.
        sum: their sum, in float64.
        sum_abs: the sum of their magnitudes.
        sum_squares: the sum of their squares.
        nan: NaNs, not counted.
        inf: infinities, not counted.
        sentinels: finite values above :data:`SENTINEL` in magnitude, not counted.
    """

    count: int
    min: float
    max: float
    sum: float
    sum_abs: float
    sum_squares: float
    nan: int
    inf: int
    sentinels: int


def accumulate(x: NDArray[np.float32], counts: NDArray[np.int64]) -> Tally:
    """Add the values of an array to a histogram, and give their moments.

    ``-0.0`` counts as ``0.0``. Sums run in 16 lanes (element i in lane ``i % 16``), which are added pairwise.

    Args:
        x: float32 values of any shape and layout.
        counts: the histogram, ``(16384,)`` int64, updated in place.

    Returns:
        The moments of these values alone.
    """
    flat = np.ascontiguousarray(x, np.float32).reshape(-1)
    if _histogram is not None:
        return Tally(*_histogram.accumulate(flat, counts, _scratch()))
    return _accumulate_numpy(flat, counts)


def _scratch() -> NDArray[np.uint32]:
    """Zeroed working space of the C kernel, one a thread; the kernel leaves it zeroed."""
    space: NDArray[np.uint32] | None = getattr(_local, "scratch", None)
    if space is None:
        space = _local.scratch = np.zeros(_SCRATCH, np.uint32)
    return space


@np.errstate(invalid="ignore")  # signalling NaNs
def _accumulate_numpy(flat: NDArray[np.float32], counts: NDArray[np.int64]) -> Tally:
    lanes = np.zeros((3, _LANES), np.float64)
    low, high = np.inf, -np.inf
    total = nan = inf = sentinels = 0
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK] + np.float32(0.0)  # -0.0 becomes 0.0
        bits = chunk.view(np.uint32)
        magnitude = bits & np.uint32(_MAGNITUDE)
        if magnitude.max() > _SENTINEL_BITS:
            excluded = magnitude > _SENTINEL_BITS
            chunk_nan = int(np.count_nonzero(magnitude > _INFINITY_BITS))
            chunk_inf = int(np.count_nonzero(magnitude == _INFINITY_BITS))
            nan, inf = nan + chunk_nan, inf + chunk_inf
            sentinels += int(np.count_nonzero(excluded)) - chunk_nan - chunk_inf
            kept, kept_bits = chunk[~excluded], bits[~excluded]
            chunk[excluded] = 0.0
        else:
            kept, kept_bits = chunk, bits
        if kept.size:
            total += kept.size
            low, high = min(low, float(kept.min())), max(high, float(kept.max()))
            counts += np.bincount(kept_bits >> _SHIFT, minlength=KEYS)
        _add_lanes(lanes, chunk)
    if not total:
        low = high = 0.0
    width = _LANES
    while width > 1:
        width //= 2
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
    sums = [float(lane[0]) for lane in lanes]
    return Tally(total, low, high, sums[0], sums[1], sums[2], nan, inf, sentinels)


def _add_lanes(lanes: NDArray[np.float64], chunk: NDArray[np.float32]) -> None:
    """Add a chunk to the lanes row by row, in order: reducing the first axis of a C-ordered array does just that."""
    rows = -(-chunk.size // _LANES)
    wide = np.zeros((rows + 1, _LANES), np.float64)
    body = wide[1:].reshape(-1)
    body[: chunk.size] = chunk
    wide[0] = lanes[0]
    lanes[0] = np.add.reduce(wide, axis=0)
    np.abs(body, out=body)
    wide[0] = lanes[1]
    lanes[1] = np.add.reduce(wide, axis=0)
    np.multiply(body, body, out=body)
    wide[0] = lanes[2]
    lanes[2] = np.add.reduce(wide, axis=0)


def keys_of(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """The key of each value: the top 14 bits of its pattern."""
    keys: NDArray[np.int64] = (np.ascontiguousarray(x).view(np.uint32) >> np.uint32(_SHIFT)).astype(np.int64)
    return keys


def key_edges(keys: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The magnitudes between which the values of a key lie: ``lower <= |x| < upper``.

    Args:
        keys: keys of any shape; the sign bit (8192) is ignored.

    Returns:
        Lower and upper magnitudes, float64, of the shape of ``keys``.
    """
    pattern = (np.asarray(keys).astype(np.uint32) & np.uint32(KEYS // 2 - 1)) << np.uint32(_SHIFT)
    lower = pattern.view(np.float32).astype(np.float64)
    upper = (pattern + np.uint32(1 << _SHIFT)).view(np.float32).astype(np.float64)
    return lower, upper
