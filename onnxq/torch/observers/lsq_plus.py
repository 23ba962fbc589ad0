"""The scales and offsets that LSQ+ starts from (Bhalgat et al., 2020, section 3.3)."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.ranged import MIN_SCALE
from onnxq.spec import QuantSpec
from onnxq.torch.observers.base import Ends, grid_ends
from onnxq.torch.observers.moments import Moments
from onnxq.torch.observers.mse import shares
from onnxq.torch.observers.trial import Trial
from onnxq.torch.parameters import require

__all__ = ["LSQPlus"]


class LSQPlus(Moments):
    """``max(|mean - 3 std|, |mean + 3 std|) / 2**(bits - 1)`` on symmetric grids, which the paper has for weights.

    On asymmetric grids, which it has for activations, the range of least squared error: both ends are shrunk together,
    then each for itself. Over batches its ends are averaged.

    Args:
        momentum: share that the range so far keeps at each batch, on asymmetric grids.
        steps: shrinkings tried, evenly spaced down to a fifth of the range.
    """

    uniform_only = True

    def __init__(self, momentum: float = 0.9, steps: int = 20) -> None:
        super().__init__()
        require("observer 'lsq_plus', momentum", momentum, 0, 1)
        require("observer 'lsq_plus', steps", steps, 1)
        self.momentum, self.steps = momentum, steps

    def batch(self, x: torch.Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`."""
        low, high = super().batch(x, spec)
        if spec.symmetric:
            return low, high
        trial, share = Trial(x, spec), shares(self.steps)
        low, high = trial.best(low * share, high * share)
        low, high = trial.best(low * share, np.broadcast_to(high, (self.steps, len(high))))
        return trial.best(np.broadcast_to(low, (self.steps, len(low))), high * share)

    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """See :meth:`Observer.joined`."""
        return np.asarray(self.momentum * old + (1 - self.momentum) * new)

    def found(self, low: Ends, high: Ends, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Moments.found`."""
        if not spec.symmetric:
            return low, high
        reach = np.maximum(np.abs(self.mean - 3 * self.deviation), np.abs(self.mean + 3 * self.deviation))
        return grid_ends(np.maximum(reach / (1 << (spec.bits - 1)), MIN_SCALE), low, spec)
