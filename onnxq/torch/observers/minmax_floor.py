"""The power-of-two scale of least squared error, at or below the one that holds all values."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.ranged import MIN_SCALE, from_range
from onnxq.spec import QuantSpec
from onnxq.torch.observers.base import Ends, grid_ends
from onnxq.torch.observers.minmax import MinMax
from onnxq.torch.observers.trial import Trial
from onnxq.torch.parameters import require

__all__ = ["MinMaxFloor", "best_exponent"]


def best_exponent(x: torch.Tensor, low: Ends, high: Ends, spec: QuantSpec, steps: int) -> Ends:
    """``e`` of the scale ``2**e`` with the least squared error, of ``steps`` downwards from the one that holds all.

    Args:
        x: the values.
        low: smallest of each channel.
        high: largest.
        spec: of the grid.
        steps: exponents tried.

    Returns:
        Whole numbers, (channels,); of errors alike the largest.
    """
    fit = from_range(low, high, spec).scale.astype(np.float64)
    start = np.ceil(np.log2(np.maximum(fit, MIN_SCALE)))
    exponents = np.maximum(start - np.arange(steps)[:, None], -126.0)
    ends = grid_ends(np.exp2(exponents), np.broadcast_to(low, exponents.shape), spec)
    at = np.argmin(Trial(x, spec).errors(*ends), axis=0)[None]
    return np.asarray(np.take_along_axis(exponents, at, 0)[0])


class MinMaxFloor(MinMax):
    """The scale ``2**e`` of least squared error on a batch, ``e`` from the one that holds all values down; over batches
    the outermost.

    Args:
        steps: exponents tried.
    """

    uniform_only = True

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        require("observer 'minmax_floor', steps", steps, 1)
        self.steps = steps

    def batch(self, x: torch.Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`."""
        low, high = super().batch(x, spec)
        return grid_ends(np.exp2(best_exponent(x, low, high, spec, self.steps)), low, spec)
