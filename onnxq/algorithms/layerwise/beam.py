"""Rounding the few inputs of a row by a search that comes close to the best of all roundings.

A depthwise kernel has 9 or 25 weights: there the errors that rounding one after the other leaves are well above the
least that integers can have, and a wide search costs little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.layerwise.rounding import Grid, upper_factor

__all__ = ["MOST_INPUTS", "beam"]

Doubles = NDArray[np.float64]

MOST_INPUTS = 32
"""Inputs up to which a search is worth its time, which grows with their square."""
_NUMBERS = 1 << 22
"""Held at a time."""


def beam(weight: Doubles, hessian: Doubles, grid: Grid, *, width: int = 16) -> Doubles:
    """Round one input after the other, and go on with the best roundings of those before it, so many of each output.

    With a width of 1 this is :func:`onnxq.algorithms.layerwise.rounding.feed_back`. See Guo & Nilsson, Algorithm and
    Implementation of the K-Best Sphere Decoding for MIMO Detection, 2006.

    Args:
        weight: (groups, outputs, inputs).
        hessian: (groups, inputs, inputs); damped as far as it is not positive definite in float64.
        grid: of the weight, of 2 bits or more.
        width: roundings of the inputs so far that are kept, 1 or more.
    """
    groups, outputs, inputs = weight.shape
    most = max(1, _NUMBERS // (groups * inputs * width))
    if outputs > most:
        parts = [np.arange(outputs) // most == part for part in range(-(-outputs // most))]
        found = [beam(weight[:, part], hessian, grid.of_outputs(part), width=width) for part in parts]
        return np.concatenate(found, axis=1)
    order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")
    rows = np.arange(groups)[:, None, None]
    factor = upper_factor(hessian[rows, order[:, :, None], order[:, None, :]])  # the error is |change @ factor|^2
    wanted, grid = np.take_along_axis(weight, order[:, None, :], 2), grid.full(inputs).take(order)
    errors, changes = np.zeros((groups, outputs, 1)), np.zeros((groups, outputs, 1, inputs))
    for k in range(inputs):
        scale, zero = (part[:, :, k, None, None] for part in (grid.scale, grid.zero))
        now, own = wanted[:, :, k, None, None], factor[:, k, k, None, None, None]
        carried = np.einsum("gobk,gk->gob", changes[..., :k], factor[:, :k, k])[..., None]
        middle = np.clip(np.rint((now - carried / own) / scale), grid.qmin - zero + 1, grid.qmax - zero - 1)
        change = (middle + np.array([-1.0, 0.0, 1.0])) * scale - now
        level = (errors[..., None] + np.square(carried + change * own)).reshape(groups, outputs, -1)
        kept = np.argsort(level, axis=2, kind="stable")[..., :width]
        errors = np.take_along_axis(level, kept, 2)
        changes = np.take_along_axis(changes, (kept // 3)[..., None], 2)
        changes[..., k] = np.take_along_axis(change.reshape(groups, outputs, -1), kept, 2)
    steps = np.rint((changes[:, :, 0] + wanted) / grid.scale)  # the first is the best
    return np.take_along_axis(steps * grid.scale, np.argsort(order, axis=1)[:, None, :], 2)
