"""The squared error that a grid makes on a histogram.

Values are taken as spread evenly inside a bin, and as a point where the bin has no width (clamped to an extreme, or
zero) and where they crowd at an extreme. Zero is on every grid, so zeros make no error.

The error of rounding ``u = x / scale`` to the nearest integer and saturating integrates in closed form. With
``v = clip(u, low, high)``, ``k = round(v)``, ``t = v - k``, the antiderivative of the squared error is ::

    G(u) = k / 12 + t**3 / 3 + (u - v)**3 / 3

since every whole cell adds ``1/12`` (the integral of ``t**2`` from -1/2 to 1/2) and everything beyond an end adds a
parabola. The mean error of a bin ``[a, b]`` is ``scale**2 * (G(b) - G(a)) / (b - a)``. Of a logarithmic grid the
integral is :func:`onnxq.grids.logarithmic.integral`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import TensorStatistics
from onnxq.grids.logarithmic import integral
from onnxq.qparams import QParams, fake_quantize
from onnxq.spec import Scheme

__all__ = ["Bins", "Floats"]

Floats = NDArray[np.float64]

_NARROW = 1e-6  # in units of the scale: below this width a bin is a point
_CELLS = 3  # grid points on each side of zero whose cells the quick estimate treats one by one
_ZERO_WIDTH = 2.0**-130
_CROWD = 8  # values


class Bins:
    """A histogram prepared for many evaluations.

    Args:
        stats: statistics of a tensor with at least one value.
    """

    def __init__(self, stats: TensorStatistics) -> None:
        self.lower, self.upper, counts = stats.edges()
        self.counts = counts.astype(np.float64)
        _gather_at_ends(self.lower, self.upper, self.counts)
        self._middle = 0.5 * (self.lower + self.upper)
        zero = (np.abs(self.lower) < _ZERO_WIDTH) & (np.abs(self.upper) < _ZERO_WIDTH)
        self.lower[zero] = self.upper[zero] = self._middle[zero] = 0.0
        self.total = float(self.counts.sum())
        # sums of 1, x and x**2 below each edge; steps where a bin is a point
        edges = np.stack([self.lower, self.upper], axis=1).reshape(-1)
        width = self.upper - self.lower
        moments = np.stack([self.counts, self.counts * self._middle, self.counts * (self._middle**2 + width**2 / 12.0)])
        sums = np.cumsum(moments, axis=1)
        below = np.concatenate([np.zeros((3, 1)), sums[:, :-1]], axis=1)
        self._edges = edges
        self._sums = np.stack([below, sums], axis=2).reshape(3, -1)

    def exact(self, qp: QParams) -> Floats:
        """Sum of squared errors on all bins.

        Args:
            qp: candidates, scale and zero point of shape ``(candidates,)``.

        Returns:
            ``(candidates,)`` float64.
        """
        if qp.spec.scheme is Scheme.LOGARITHMIC:
            return np.array([self._logarithmic(qp, clip) for clip in qp.scale])
        scale, low, high = _grid(qp)
        a, b = self.lower / scale[:, None], self.upper / scale[:, None]
        width = b - a
        point = width < _NARROW
        spread = (_integral(b, low, high) - _integral(a, low, high)) / np.where(point, 1.0, width)
        middle = self._middle / scale[:, None]
        at = middle - np.rint(np.clip(middle, low[:, None], high[:, None]))
        error: Floats = np.where(point, at**2, spread) @ self.counts * scale**2
        return error

    def _logarithmic(self, qp: QParams, clip: np.float32) -> float:
        """Sum of squared errors of one logarithmic grid."""
        width = self.upper - self.lower
        point = width <= _NARROW * np.maximum(np.abs(self.lower), np.abs(self.upper))
        spread = (integral(self.upper, float(clip)) - integral(self.lower, float(clip))) / np.where(point, 1.0, width)
        rounded = fake_quantize(self._middle, replace(qp, scale=np.asarray(clip), zero_point=np.zeros((), np.int64)))
        return float(np.where(point, (rounded - self._middle) ** 2, spread) @ self.counts)

    def quick(self, qp: QParams) -> Floats:
        """As :meth:`exact`, at a cost that hardly depends on the number of bins.

        Saturated values and the cells next to zero are treated bin by bin, through running sums; all others make an
        error of ``scale**2 / 12`` on average.

        Args:
            qp: candidates on a uniform grid, scale and zero point of shape ``(candidates,)``.

        Returns:
            ``(candidates,)`` float64.
        """
        scale, low, high = _grid(qp)
        cells = np.arange(-_CELLS, _CELLS + 1)[:, None]  # (cells, candidates)
        borders = np.concatenate([cells - 0.5, cells[-1:] + 0.5])
        borders = np.clip(borders, low, high)  # a cell cut by an end of the grid stays whole on the inner side
        borders = np.concatenate(
            [np.full((1, len(scale)), -np.inf), low[None], borders, high[None], np.full((1, len(scale)), np.inf)]
        )
        points = np.concatenate(
            [low[None], np.zeros((1, len(scale))), np.clip(cells, low, high), np.zeros((1, len(scale))), high[None]]
        )
        counted, linear, square = np.diff(self._below(borders * scale), axis=1)
        target = points * scale
        error = square - 2.0 * target * linear + target**2 * counted
        noise = counted * (scale**2 / 12.0)
        error[1], error[-2] = noise[1], noise[-2]
        total: Floats = np.maximum(error, 0.0).sum(axis=0)
        return total

    def _below(self, x: Floats) -> Floats:
        """Sums of 1, x and x**2 over the values below ``x``: ``(3, *x.shape)``, linear inside a bin."""
        return np.stack([np.interp(x, self._edges, sums, left=0.0, right=sums[-1]) for sums in self._sums])


def _gather_at_ends(lower: Floats, upper: Floats, counts: Floats) -> None:
    """Make a point of the first and the last bin where the values crowd at the extreme, as saturated ones do.

    That is taken to be so if the bin holds several values and is twice as dense as its inner neighbour together with
    the gap between them; a single value is at the extreme anyway.
    """
    if len(counts) < 2:
        return
    for end, inner, extreme, gap in ((0, 1, lower, upper[1] - upper[0]), (-1, -2, upper, lower[-1] - lower[-2])):
        density = counts[inner] / max(gap, _ZERO_WIDTH)
        crowded = counts[end] >= _CROWD and counts[end] > 2.0 * density * (upper[end] - lower[end])
        if counts[end] == 1 or crowded:
            lower[end] = upper[end] = extreme[end]


def _grid(qp: QParams) -> tuple[Floats, Floats, Floats]:
    """Scale and the integers at the ends, counted from zero."""
    zero = qp.zero_point.astype(np.float64)
    return qp.scale.astype(np.float64), qp.spec.qmin - zero, qp.spec.qmax - zero


def _integral(u: Floats, low: Floats, high: Floats) -> Floats:
    v = np.clip(u, low[:, None], high[:, None])
    k = np.rint(v)
    result: Floats = k / 12.0 + ((v - k) ** 3 + (u - v) ** 3) / 3.0
    return result
