"""Stored integers whose scales are below 0, as NNCF writes the weights that it compresses symmetrically.

Of a channel's largest number NNCF makes the lowest integer, with the sign in the scale. With scales above 0 these are
the same numbers where the integers are mirrored: by their zero point, where the grid holds all that comes of it, else
by the middle of the grid, and the zero point with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.qparams import QParams, spread

__all__ = ["mirrored"]


def mirrored(array: NDArray[Any], qparams: QParams) -> tuple[NDArray[Any], QParams]:
    """The same numbers on a grid whose scales are all above 0.

    With ``s < 0`` is ``s (q - z) = |s| (q' - z')`` for ``q' = 2 z - q`` and ``z' = z``, and also for
    ``q' = qmin + qmax - q`` and ``z' = qmin + qmax - z``, which holds every integer, on a grid that is no longer
    symmetric. A channel has the latter only where the former is not on the grid.

    Args:
        array: the integers.
        qparams: their numbers, on a uniform grid, scales of any sign.

    Returns:
        Integers and numbers; those given where no scale is below 0.
    """
    negative = qparams.scale < 0
    if not negative.any():
        return array, qparams
    spec, ends = qparams.spec, qparams.spec.qmin + qparams.spec.qmax
    _, zero = spread(qparams, array.shape)
    codes = array.astype(np.int64)
    off = (2 * zero - codes < spec.qmin) | (2 * zero - codes > spec.qmax)
    others = tuple(k for k in range(array.ndim) if zero.ndim != array.ndim or zero.shape[k] == 1)
    middle = negative & off.any(axis=others).reshape(negative.shape)
    points = np.where(middle, ends - qparams.zero_point, qparams.zero_point)
    made = replace(
        qparams,
        spec=replace(spec, symmetric=spec.symmetric and not points.any()),
        scale=np.abs(qparams.scale),
        zero_point=points,
    )
    _, new_zero = spread(made, array.shape)
    signs = np.where(spread(qparams, array.shape)[0] < 0, -1, 1)
    return new_zero + signs * (codes - zero), made
