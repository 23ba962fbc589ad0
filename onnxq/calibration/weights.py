"""The range of a weight: what it holds at 8 bits and above, the range of least squared error below.

At 8 bits a search gains next to nothing; at 4 it does, and where scales are powers of two, of which the next one may
leave half of the grid unused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import ModelError
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerBlock, PerChannel, PerTensor, QuantSpec

__all__ = ["weight_range"]

Floats = NDArray[np.float64]

_SEARCH_BELOW = 8  # bits
_RATIOS = np.concatenate(
    [np.linspace(1.0, 0.4, 25), np.linspace(0.36, 0.08, 8)]
)  # the full range comes first: it wins ties
_REFINED = np.linspace(-0.02, 0.02, 5)
_POWERS = 0.5 ** np.arange(6.0)  # each of these ranges has another power of two for its scale
_CHUNK = 1 << 20  # weights searched at a time


def weight_range(w: NDArray[np.floating], spec: QuantSpec) -> tuple[Floats, Floats]:
    """The range to quantize a weight with, for each of its channels or blocks.

    Infinite values and NaN are left out. The search tries the range times 33 ratios from 1 to 0.08, then 5 around the
    best, separately for each channel or block, and takes the one of least squared error. Of scales that are powers of
    two it tries six, at any width.

    Args:
        w: the weight, any float type and shape.
        spec: how it is quantized, its granularity included.

    Returns:
        ``lo <= 0 <= hi``, float64, of the shape of the scale: ``()``, ``(channels,)``, or per block the shape of ``w``
        with the blocked axis divided by the block size, rounded up.

    Raises:
        ModelError: the granularity does not fit the shape of ``w``.
    """
    rows, shape = _rows(np.asarray(w, np.float32), spec)
    low, high = np.zeros(len(rows)), np.zeros(len(rows))
    step = max(1, _CHUNK // max(1, rows.shape[1]))
    flat = replace(spec, granularity=PerChannel(0))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        lo, hi = _ends(part)
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            part = np.where(np.isfinite(part), part, np.float32(0.0))
            lo, hi = _ends(part)
        if (spec.bits < _SEARCH_BELOW or spec.power_of_two) and part.size:
            lo, hi = _search(part, lo, hi, flat)
        low[start : start + step], high[start : start + step] = lo, hi
    return low.reshape(shape), high.reshape(shape)


def _ends(rows: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """The least and the largest number of each row and 0; NaN where a row holds one."""
    with np.errstate(invalid="ignore"):
        return rows.min(axis=1, initial=0.0).astype(np.float64), rows.max(axis=1, initial=0.0).astype(np.float64)


def _rows(w: NDArray[np.float32], spec: QuantSpec) -> tuple[NDArray[np.float32], tuple[int, ...]]:
    """The weight as one row for each scale, padded with zeros, and the shape of the scale."""
    match spec.granularity:
        case PerTensor():
            return w.reshape(1, -1), ()
        case PerChannel(axis):
            _require_axis(w, axis)
            return np.moveaxis(w, axis, 0).reshape(w.shape[axis], w.size // max(1, w.shape[axis])), (w.shape[axis],)
        case PerBlock(axis, size):
            _require_axis(w, axis)
            blocks = -(-w.shape[axis] // size)
            padding = [(0, 0)] * w.ndim
            padding[axis] = (0, blocks * size - w.shape[axis])
            padded = np.pad(w, padding)
            split = padded.reshape(*w.shape[:axis], blocks, size, *w.shape[axis + 1 :])
            shape = (*w.shape[:axis], blocks, *w.shape[axis + 1 :])
            return np.moveaxis(split, axis + 1, -1).reshape(-1, size), shape


def _require_axis(w: NDArray[np.float32], axis: int) -> None:
    if axis >= w.ndim:
        raise ModelError(f"a weight of shape {w.shape} has no axis {axis} to quantize along")


def _search(rows: NDArray[np.float32], low: Floats, high: Floats, spec: QuantSpec) -> tuple[Floats, Floats]:
    best = np.ones(len(rows))
    least = np.full(len(rows), np.inf)

    def attempt(ratio: Floats) -> None:
        changed = fake_quantize(rows, from_range(low * ratio, high * ratio, spec))
        error = np.square(changed - rows, dtype=np.float64).sum(axis=1)
        better = error < least
        best[better], least[better] = ratio[better], error[better]

    for ratio in _POWERS if spec.power_of_two else _RATIOS:
        attempt(np.full(len(rows), ratio))
    if spec.power_of_two:
        return low * best, high * best
    around = best.copy()
    for shift in _REFINED:
        attempt(np.clip(around + shift, 0.02, 1.0))
    return low * best, high * best
