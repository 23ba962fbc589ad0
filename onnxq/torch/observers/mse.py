"""The shrunk range whose grid has the least error on the batch."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.spec import QuantSpec, Scheme
from onnxq.torch.observers.base import Ends
from onnxq.torch.observers.ema import EMAMinMax
from onnxq.torch.observers.minmax import MinMax
from onnxq.torch.observers.trial import Trial
from onnxq.torch.parameters import require

__all__ = ["EMAMSE", "MSE", "shares"]


def shares(steps: int) -> Ends:
    """The shrinkings tried, evenly spaced from 1 down to a fifth: (steps, 1)."""
    return np.linspace(1.0, 0.2, steps)[:, None]


def _shrunk(x: torch.Tensor, low: Ends, high: Ends, spec: QuantSpec, steps: int, power: float) -> tuple[Ends, Ends]:
    """Both ends times the share of the least error; the wider in a tie.

    The numbers of a logarithmic grid do not move with its range, so that one is not shrunk.
    """
    if spec.scheme is Scheme.LOGARITHMIC:
        return low, high
    return Trial(x, spec).best(low * shares(steps), high * shares(steps), power)


class MSE(MinMax):
    """The outermost of the batches' ends, shrunk together, whose grid has the least error on its batch.

    Args:
        steps: shrinkings tried, evenly spaced down to a fifth of the range.
        power: of the error; 2.4 weighs large errors more.
    """

    def __init__(self, steps: int = 40, power: float = 2.0) -> None:
        super().__init__()
        require("observer, steps", steps, 1)
        require("observer, power", power, 0.1)
        self.steps, self.power = steps, power

    def batch(self, x: torch.Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`."""
        return _shrunk(x, *super().batch(x, spec), spec, self.steps, self.power)


class EMAMSE(EMAMinMax):
    """The running mean of these ends in place of the outermost.

    Args:
        momentum: share that the range so far keeps at each batch.
        steps: shrinkings tried, evenly spaced down to a fifth of the range.
        power: of the error.
    """

    def __init__(self, momentum: float = 0.9, steps: int = 40, power: float = 2.0) -> None:
        super().__init__(momentum)
        require("observer, steps", steps, 1)
        require("observer, power", power, 0.1)
        self.steps, self.power = steps, power

    def batch(self, x: torch.Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`."""
        return _shrunk(x, *super().batch(x, spec), spec, self.steps, self.power)
