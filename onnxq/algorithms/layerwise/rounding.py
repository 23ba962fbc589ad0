"""Rounding a matrix so that the error of a matrix product is small, not that of its entries.

All functions work on ``tr((Q - W) H (Q - W)^T)`` with weights (groups, outputs, inputs) and ``H`` (groups, inputs,
inputs), every group and every output for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.common.quantized_layer import QuantizedLayer
from onnxq.qparams import QParams

__all__ = ["Grid", "damped", "descend", "errors", "feed_back", "upper_factor"]

Doubles = NDArray[np.float64]

_BLOCK = 64
"""Columns that are worked on before the rest hears of them; the result does not depend on it."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The numbers that a weight can hold.

    Attributes:
        scale: float64 (groups, outputs, 1 or inputs), each a float32 number.
        zero: zero points, the same shape.
        qmin: the lowest integer.
        qmax: the highest.
    """

    scale: Doubles
    zero: Doubles
    qmin: int
    qmax: int

    @classmethod
    def of(cls, layer: QuantizedLayer, qp: QParams) -> Grid:
        """The grid of a layer's weight."""
        scale, zero = layer.rows(qp)
        return cls(scale.astype(np.float64), zero.astype(np.float64), qp.spec.qmin, qp.spec.qmax)

    def full(self, inputs: int) -> Grid:
        """The same with a scale for every input."""
        shape = (*self.scale.shape[:2], inputs)
        return Grid(np.broadcast_to(self.scale, shape), np.broadcast_to(self.zero, shape), self.qmin, self.qmax)

    def take(self, order: NDArray[np.int64]) -> Grid:
        """The inputs of each group in another order, (groups, inputs)."""
        every = order[:, None, :]
        scale, zero = (np.take_along_axis(part, every, 2) for part in (self.scale, self.zero))
        return Grid(scale, zero, self.qmin, self.qmax)

    def of_outputs(self, which: NDArray[np.bool_]) -> Grid:
        """The same for some of the outputs."""
        return Grid(self.scale[:, which], self.zero[:, which], self.qmin, self.qmax)

    def nearest(self, x: Doubles) -> Doubles:
        """The nearest numbers of the grid."""
        return (np.clip(np.rint(x / self.scale) + self.zero, self.qmin, self.qmax) - self.zero) * self.scale

    def column(self, index: int) -> Callable[[Doubles], Doubles]:
        """:meth:`nearest` for one input: (groups, outputs) → the same."""
        at = index if self.scale.shape[2] > 1 else 0
        scale, zero = self.scale[:, :, at], self.zero[:, :, at]
        low, high = self.qmin - zero, self.qmax - zero

        def nearest(x: Doubles) -> Doubles:
            return np.asarray(np.clip(np.rint(x / scale), low, high) * scale)

        return nearest


def errors(change: Doubles, hessian: Doubles) -> Doubles:
    """``d H d^T`` of each output, (groups, outputs)."""
    return np.asarray(np.einsum("goi,goi->go", change @ hessian, change))


def damped(hessian: Doubles, damping: float) -> Doubles:
    """A Hessian with ``damping`` times the mean of its diagonal added to that; inputs that are always 0 get the mean.

    Args:
        hessian: (groups, inputs, inputs), symmetric and positive semidefinite.
        damping: from 0 on.
    """
    diagonal = np.diagonal(hessian, axis1=1, axis2=2)
    mean = diagonal.mean(axis=1, keepdims=True)
    mean = np.where(mean > 0, mean, 1.0)
    extra = damping * mean + np.where(diagonal > 0, 0.0, mean)
    result: Doubles = hessian.copy()
    index = np.arange(hessian.shape[1])
    result[:, index, index] += extra
    return result


def feed_back(weight: Doubles, hessian: Doubles, grid: Grid, *, by_activation: bool = True) -> Doubles:
    """Round one input after the other; those not yet rounded take up the error (GPTQ).

    With ``H = (U + I) D (U + I)^T``, ``U`` strictly upper triangular, input ``k`` is rounded from
    ``W_k + (W - Q)_{<k} U_{<k,k}``. This is GPTQ (Frantar et al. 2022) in the form that Chee et al. (QuIP, 2023,
    theorem 6) showed to be equal; it needs no inverse.

    Args:
        weight: (groups, outputs, inputs).
        hessian: (groups, inputs, inputs); damped (more) as far as it is not positive definite in float64.
        grid: of the weight.
        by_activation: inputs of large second moment first, else in their order.
    """
    groups, _, inputs = weight.shape
    order = np.tile(np.arange(inputs), (groups, 1))
    if by_activation:
        order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")
    rows = np.arange(groups)[:, None, None]
    hessian = hessian[rows, order[:, :, None], order[:, None, :]]
    weight = np.take_along_axis(weight, order[:, None, :], 2)
    if grid.scale.shape[2] > 1:
        grid = grid.take(order)
    factor = upper_factor(hessian)
    feedback = factor / np.diagonal(factor, axis1=1, axis2=2)[:, None, :]
    rounded = np.empty_like(weight)
    missing = np.empty_like(weight)  # W - Q
    for start in range(0, inputs, _BLOCK):
        stop = min(start + _BLOCK, inputs)
        wanted = weight[:, :, start:stop] + missing[:, :, :start] @ feedback[:, :start, start:stop]
        for k in range(start, stop):
            column = wanted[:, :, k - start]
            if k > start:
                inner = missing[:, :, start:k] @ feedback[:, start:k, k : k + 1]
                column = column + inner[:, :, 0]
            rounded[:, :, k] = grid.column(k)(column)
            missing[:, :, k] = weight[:, :, k] - rounded[:, :, k]
    back = np.argsort(order, axis=1)
    return np.take_along_axis(rounded, back[:, None, :], 2)


def descend(
    weight: Doubles,
    start: Doubles,
    hessian: Doubles,
    grid: Grid,
    *,
    sweeps: int = 20,
    low: Doubles | None = None,
    high: Doubles | None = None,
) -> Doubles:
    """Coordinate descent on the grid: each input in turn takes the best number, the others given, until none changes.

    The error never rises. With ``low`` and ``high`` a weight takes one of these two only.

    Args:
        weight: (groups, outputs, inputs).
        start: on the grid, the same shape.
        hessian: (groups, inputs, inputs), its diagonal positive (see :func:`damped`).
        grid: of the weight.
        sweeps: at most so many passes over the inputs.
        low: the numbers allowed, the same shape; with ``high``.
        high: the other ones.
    """
    inputs = weight.shape[2]
    result: Doubles = start.copy()
    diagonal = np.diagonal(hessian, axis1=1, axis2=2)
    active = np.arange(weight.shape[1])  # an output that a whole sweep has left alone is done
    now, slope = result, (start - weight) @ hessian  # half the gradient
    for _ in range(sweeps):
        moving = np.zeros(len(active), bool)
        for begin in range(0, inputs, _BLOCK):
            end = min(begin + _BLOCK, inputs)
            near, local = hessian[:, begin:end, begin:end], slope[:, :, begin:end].copy()
            before = now[:, :, begin:end].copy()
            for k in range(begin, end):
                at = k - begin
                best = now[:, :, k] - local[:, :, at] / diagonal[:, k, None]
                if low is not None and high is not None:
                    down, up = low[:, :, k], high[:, :, k]
                    new = np.where(np.abs(best - down) <= np.abs(up - best), down, up)
                else:
                    new = grid.column(k)(best)
                step = new - now[:, :, k]
                # a tie must not be taken back and forth
                step[np.abs(2.0 * best - new - now[:, :, k]) <= 1e-9 * np.abs(step)] = 0.0
                group, output = np.nonzero(step)
                if len(group):
                    now[group, output, k] = new[group, output]
                    local[group, output, at + 1 :] += step[group, output, None] * near[group, at, at + 1 :]
            moved = now[:, :, begin:end] - before
            rows = moved.any(axis=(0, 2))
            if rows.any():
                moving |= rows
                slope[:, rows] += moved[:, rows] @ hessian[:, begin:end, :]
        result[:, active] = now
        if not moving.any():
            break
        if not moving.all():
            active, now, slope, grid = active[moving], now[:, moving], slope[:, moving], grid.of_outputs(moving)
            low, high = (part[:, moving] if part is not None else None for part in (low, high))
    return result


def upper_factor(hessian: Doubles) -> Doubles:
    """``R``, upper triangular, with ``R R^T`` the Hessian, damped tenfold as often as it must be."""
    tried = 0.0
    while True:
        flipped = damped(hessian, tried)[:, ::-1, ::-1]
        try:
            factor = np.asarray(np.linalg.cholesky(flipped)[:, ::-1, ::-1], np.float64)
        except np.linalg.LinAlgError:
            factor = np.full_like(hessian, np.nan)
        if np.isfinite(factor).all():
            return factor
        tried = max(10.0 * tried, 1e-8)
        if tried > 1e6:
            raise np.linalg.LinAlgError("the Hessian is not finite")
