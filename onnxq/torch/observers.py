"""Ranges that fake-quantizers start with, found from what passes them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.errors import DataError, OptionError
from onnxq.qparams import fake_quantize, from_range
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["MSE", "OBSERVERS", "EMAMinMax", "EMAQuantile", "MinMax", "Observer", "observer_named"]

Tensor = torch.Tensor
Ends = NDArray[np.float64]


def _rows(x: Tensor, spec: QuantSpec) -> Tensor:
    """(channels, elements), one row per tensor."""
    if isinstance(spec.granularity, PerChannel):
        return x.movedim(spec.granularity.axis, 0).flatten(1) if x.ndim > 1 else x.reshape(-1, 1)
    return x.reshape(1, -1)


class Observer(ABC):
    """Watches tensors and gives a range, (channels,) or () float64.

    Args:
        momentum: share that the range so far keeps at each batch, where the method averages.
    """

    def __init__(self, momentum: float = 0.9) -> None:
        self.momentum = momentum
        self.low: Ends | None = None
        self.high: Ends | None = None

    def watch(self, x: Tensor, spec: QuantSpec) -> None:
        """Look at a batch, float32."""
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
            raise DataError("calibration never reached it", where=where, hint="Give batches that run this part")
        return self.low, self.high

    def forget(self) -> None:
        """Begin anew."""
        self.low = self.high = None

    def batch(self, x: Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """The range of a batch: here the smallest and the largest value."""
        low, high = torch.aminmax(_rows(x, spec), dim=1)
        if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise DataError("a tensor holds NaN or infinite values", where="the range of a fake-quantizer")
        return low.cpu().numpy().astype(np.float64), high.cpu().numpy().astype(np.float64)

    @abstractmethod
    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """One end of the range so far and that of a batch, together."""


class MinMax(Observer):
    """The smallest and largest value of all batches."""

    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """See :meth:`Observer.joined`."""
        return np.asarray(outer(old, new))


class EMAMinMax(Observer):
    """The running mean of the batches' ends."""

    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """See :meth:`Observer.joined`."""
        return np.asarray(self.momentum * old + (1 - self.momentum) * new)


class EMAQuantile(EMAMinMax):
    """The running mean of ends beyond which ``1 - quantile`` of the absolute values lie.

    Args:
        quantile: share of the values inside, of a channel or the tensor.
    """

    def __init__(self, momentum: float = 0.9, quantile: float = 0.9999) -> None:
        super().__init__(momentum)
        self.quantile = quantile

    def batch(self, x: Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`."""
        low, high = super().batch(x, spec)
        size = _rows(x, spec).abs()
        keep = max(int(np.ceil(self.quantile * size.shape[1])), 1)
        clip = torch.kthvalue(size, keep, dim=1).values.cpu().numpy().astype(np.float64)
        return np.maximum(low, -clip), np.minimum(high, clip)


class MSE(EMAMinMax):
    """The running mean of the ends, shrunk together, whose grid has the least squared error on the batch.

    Args:
        steps: shrinkings tried, evenly spaced down to a fifth of the range.
    """

    def __init__(self, momentum: float = 0.9, steps: int = 40) -> None:
        super().__init__(momentum)
        self.steps = steps

    def batch(self, x: Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`."""
        low, high = super().batch(x, spec)
        rows = _rows(x, spec).cpu().numpy()
        flat = QuantSpec(spec.bits, spec.signed, spec.symmetric, PerChannel(0), spec.narrow_range, spec.power_of_two)
        best = np.full(low.shape, np.inf)
        found_low, found_high = low.copy(), high.copy()
        for share in np.linspace(1.0, 0.2, self.steps):
            qp = from_range(low * share, high * share, flat)
            error = np.square(fake_quantize(rows, qp).astype(np.float64) - rows).sum(axis=1)
            better = error < best
            best = np.where(better, error, best)
            found_low, found_high = np.where(better, low * share, found_low), np.where(better, high * share, found_high)
        return found_low, found_high


OBSERVERS: dict[str, type[Observer]] = {"minmax": MinMax, "ema": EMAMinMax, "quantile": EMAQuantile, "mse": MSE}
"""Those that there are."""


def observer_named(name: str) -> type[Observer]:
    """An observer by its name.

    Raises:
        OptionError: there is none of that name.
    """
    if name not in OBSERVERS:
        raise OptionError(f"there is no observer {name!r}", hint=f"There are {', '.join(sorted(OBSERVERS))}")
    return OBSERVERS[name]
