"""What every observer is: it watches batches and gives a range, of which :func:`onnxq.ranged.from_range` makes a grid.

A method that finds a scale and a zero point gives the range of exactly that grid, see :func:`grid_ends`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from onnxq.calibration.statistics import SENTINEL
from onnxq.errors import DataError
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["Ends", "Observer", "grid_ends", "rows"]

Tensor = torch.Tensor
Ends = NDArray[np.float64]


def rows(x: Tensor, spec: QuantSpec) -> Tensor:
    """(channels, elements), one row per tensor."""
    if isinstance(spec.granularity, PerChannel):
        return x.movedim(spec.granularity.axis, 0).flatten(1) if x.ndim > 1 else x.reshape(-1, 1)
    return x.reshape(1, -1)


def grid_ends(scale: ArrayLike, low: Ends, spec: QuantSpec) -> tuple[Ends, Ends]:
    """The range whose grid has this scale, and on an asymmetric grid its lowest number next to ``low``.

    Args:
        scale: > 0, of the shape of ``low``.
        low: the lowest value that the grid shall hold.
        spec: the grid.
    """
    steps = np.asarray(scale, np.float64)
    if spec.symmetric:
        zero = np.asarray(0 if spec.signed else 1 << (spec.bits - 1))
    else:
        zero = np.clip(np.rint(spec.qmin - np.minimum(low, 0.0) / steps), spec.qmin, spec.qmax)
    ends = (np.asarray(spec.qmin - zero) * steps, np.asarray(spec.qmax - zero) * steps)
    return (-ends[1], ends[1]) if spec.symmetric else ends


class Observer(ABC):
    """Watches tensors and gives a range, (channels,) or () float64.

    Attributes:
        uniform_only: the method speaks of the steps of a uniform grid.
    """

    uniform_only = False

    def __init__(self) -> None:
        self.low: Ends | None = None
        self.high: Ends | None = None

    def watch(self, x: Tensor, spec: QuantSpec) -> None:
        """Look at a batch, float32.

        Raises:
            DataError: it holds NaN, infinite values or masks.
        """
        if not x.numel():
            return
        low, high = self.batch(x, spec)
        if not isinstance(spec.granularity, PerChannel):
            low, high = low.reshape(()), high.reshape(())
        if self.low is None or self.high is None:
            self.low, self.high = low, high
        else:
            self.low, self.high = self.joined(self.low, low, np.minimum), self.joined(self.high, high, np.maximum)

    def range(self, where: str) -> tuple[Ends, Ends]:
        """What was found.

        Raises:
            DataError: nothing was watched.
        """
        if self.low is None or self.high is None:
            hint = "Give batches that run this part: transformers add their masks, say, only where a batch has padding"
            raise DataError("calibration never reached it", where=where, hint=hint)
        return self.low, self.high

    def forget(self) -> None:
        """Begin anew."""
        self.low = self.high = None

    def held(self) -> list[Ends]:
        """Numbers to go on from, nothing where nothing was watched; histograms and votes are left out."""
        return [] if self.low is None or self.high is None else [self.low, self.high]

    def go_on(self, held: Sequence[Ends], spec: QuantSpec) -> None:
        """Continue from what :meth:`held` gave, at the grid ``spec``; begin anew where that is empty."""
        self.forget()
        if held:
            self.low, self.high = held[:2]

    def batch(self, x: Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """The range of a batch, (channels,): here the smallest and the largest value."""
        values = rows(x, spec)
        low, high = values.amin(1), values.amax(1)  # aminmax along an axis is twenty times slower on a CPU
        ends = torch.stack([low, high]).abs()
        if not bool((ends <= SENTINEL).all()):
            mask = bool((ends > SENTINEL).any())
            raise DataError(
                "it holds NaN, infinite values or masks (beyond 1e30)",
                where="a tensor that is quantized",
                hint="Give prepare an example that shows the mask, with padding say: it stays float then"
                if mask
                else "Look at the batches, and at the weights: a training may have diverged",
            )
        return low.cpu().numpy().astype(np.float64), high.cpu().numpy().astype(np.float64)

    @abstractmethod
    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """One end of the range so far and that of a batch, together."""
