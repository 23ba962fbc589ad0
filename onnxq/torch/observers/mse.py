"""The shrunk range whose grid has the least error on the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.qparams import fake_quantize, from_range
from onnxq.spec import PerChannel, QuantSpec, Scheme
from onnxq.torch.observers.base import Ends, rows
from onnxq.torch.observers.ema import EMAMinMax
from onnxq.torch.observers.minmax import MinMax
from onnxq.torch.parameters import require

__all__ = ["EMAMSE", "MSE", "grid_error", "shrunk"]


def grid_error(values: NDArray[np.float32], low: Ends, high: Ends, spec: QuantSpec, power: float) -> Ends:
    """Sum of ``|quantized - x| ** power`` of each row.

    Args:
        values: (channels, elements).
        low: (channels,).
        high: (channels,).
        spec: of the grid, whose granularity does not matter here.
        power: of the error.
    """
    qp = from_range(low, high, replace(spec, granularity=PerChannel(0)))
    error = np.abs(fake_quantize(values, qp).astype(np.float64) - values)
    return np.asarray(np.power(error, power).sum(axis=1), np.float64)


def shrunk(x: torch.Tensor, low: Ends, high: Ends, spec: QuantSpec, steps: int, power: float) -> tuple[Ends, Ends]:
    """Both ends times the share, of ``steps`` evenly spaced down to a fifth, of the least error; the wider in a tie.

    The numbers of a logarithmic grid do not move with its range, so that one is not shrunk.
    """
    if spec.scheme is Scheme.LOGARITHMIC:
        return low, high
    values = rows(x, spec).cpu().numpy()
    best = np.full(low.shape, np.inf)
    found_low, found_high = low.copy(), high.copy()
    for share in np.linspace(1.0, 0.2, steps):
        error = grid_error(values, low * share, high * share, spec, power)
        better = error < best
        best = np.where(better, error, best)
        found_low, found_high = np.where(better, low * share, found_low), np.where(better, high * share, found_high)
    return found_low, found_high


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
        return shrunk(x, *super().batch(x, spec), spec, self.steps, self.power)


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
        return shrunk(x, *super().batch(x, spec), spec, self.steps, self.power)
