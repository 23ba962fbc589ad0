"""Blocks of weights side by side: their ends, which of some scales fits best, their integers.

Lanes are float32, (groups, size, count): each of ``groups * count`` blocks lies along axis 1, in any strides. So both
layouts of a matrix are seen without a copy: of (inputs, outputs) a group is a row of blocks, of (outputs, inputs) all
blocks are one group.

NumPy and the C extension give equal results: every operation is one of float32, and squares are added in order. The
integers of 4-bit floating-point numbers are twice these, see :mod:`onnxq.grids.float4`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.grids import float4
from onnxq.process.compiled import compiled
from onnxq.spec import QuantSpec, Scheme

__all__ = ["KERNEL", "codes_of", "ends", "pick", "to_grid"]

Floats = NDArray[np.float32]


_lanes = compiled("onnxq.weight_only._lanes")

KERNEL = "numpy" if _lanes is None else "c"
"""Which implementation is in use."""


def ends(lanes: Floats) -> tuple[Floats, Floats]:
    """The least and the largest number of each block, (groups, count).

    Args:
        lanes: (groups, size, count), finite.
    """
    groups, _, count = lanes.shape
    if _lanes is None:
        x = np.ascontiguousarray(lanes)
        return np.minimum.reduce(x, axis=1), np.maximum.reduce(x, axis=1)
    low, high = np.empty((groups, count), np.float32), np.empty((groups, count), np.float32)
    _lanes.ends(lanes, low, high)
    return low, high


def pick(lanes: Floats, scales: Floats, zeros: Floats, spec: QuantSpec) -> NDArray[np.uint8]:
    """Which scale and zero point give each block the least squared error, the first of equal ones.

    Args:
        lanes: (groups, size, count), finite.
        scales: (tries, groups, count), fewer than 255 tries.
        zeros: the same, whole numbers.
        spec: the grid.

    Returns:
        (groups, count); ``tries`` where no error is finite.
    """
    groups, _, count = lanes.shape
    best = np.full((groups, count), len(scales), np.uint8)
    if _lanes is not None:
        kernel = _lanes.pick_floats if spec.scheme is Scheme.FLOAT4 else _lanes.pick
        kernel(lanes, scales, zeros, spec.qmin, spec.qmax, best)
        return best
    x = np.ascontiguousarray(lanes)
    least = np.full(best.shape, np.inf, np.float32)
    error = np.empty_like(x)
    for index, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
        _whole(x, scale, zero, spec, error)
        error *= scale[:, None]
        error -= x
        error *= error
        squared = error[:, 0].copy()
        for place in range(1, error.shape[1]):
            squared += error[:, place]
        better = squared < least
        best[better] = index
        np.copyto(least, squared, where=better)
    return best


def codes_of(lanes: Floats, scale: Floats, zero: Floats, spec: QuantSpec, out: NDArray[Any]) -> None:
    """The nearest integers.

    Args:
        lanes: (groups, size, count), finite.
        scale: (groups, count).
        zero: the same, whole numbers.
        spec: the grid.
        out: int8 or uint8, of the shape of ``lanes``, any strides; filled in.
    """
    if _lanes is not None:
        kernel = _lanes.code_floats if spec.scheme is Scheme.FLOAT4 else _lanes.code
        kernel(lanes, np.ascontiguousarray(scale), np.ascontiguousarray(zero), spec.qmin, spec.qmax, out)
        return
    whole = np.empty(lanes.shape, np.float32)
    _whole(lanes, scale, zero, spec, whole)
    whole += zero[:, None]
    np.copyto(out, whole, casting="unsafe")


def to_grid(ratio: Floats, zero: Floats, spec: QuantSpec) -> Floats:
    """Nearest integers less the zero point, in place.

    Args:
        ratio: numbers over their scales; changed.
        zero: whole numbers, in a shape that broadcasts against ``ratio``.
        spec: the grid.

    Returns:
        ``ratio``.
    """
    if spec.scheme is Scheme.FLOAT4:
        return float4.to_halves(ratio)
    np.rint(ratio, out=ratio)
    np.maximum(ratio, spec.qmin - zero, out=ratio)  # half the time of one clip by arrays
    np.minimum(ratio, spec.qmax - zero, out=ratio)
    return ratio


def _whole(lanes: Floats, scale: Floats, zero: Floats, spec: QuantSpec, out: Floats) -> None:
    """Nearest integers less the zero point."""
    np.divide(lanes, scale[:, None], out=out)
    to_grid(out, zero[:, None], spec)
