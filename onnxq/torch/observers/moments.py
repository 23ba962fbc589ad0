"""Observers that find the range from moments of all values that were watched, each batch in its own weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from onnxq.errors import DataError
from onnxq.spec import PerChannel, QuantSpec
from onnxq.torch.observers.base import Ends, rows
from onnxq.torch.observers.minmax import MinMax

__all__ = ["Moments"]


class Moments(MinMax):
    """Keeps count, mean, squared distance from the mean, and mean absolute value of all values, float64."""

    def __init__(self) -> None:
        super().__init__()
        self.spec: QuantSpec | None = None
        self.count = 0.0
        self.mean: Ends = np.zeros(())
        self.square: Ends = np.zeros(())
        self.size: Ends = np.zeros(())

    def forget(self) -> None:
        """See :meth:`Observer.forget`."""
        super().forget()
        self.count, self.mean, self.square, self.size = 0.0, np.zeros(()), np.zeros(()), np.zeros(())

    def watch(self, x: torch.Tensor, spec: QuantSpec) -> None:
        """See :meth:`Observer.watch`."""
        super().watch(x, spec)
        if not x.numel():
            return
        self.spec = spec
        values = rows(x, spec).double()
        if not isinstance(spec.granularity, PerChannel):
            values = values.reshape(-1)
        count = float(values.shape[-1])
        mean = values.mean(-1)
        size = (torch.linalg.vector_norm(values, 1, dim=-1) / count).cpu().numpy()
        square = torch.linalg.vector_norm(values.sub_(mean[..., None]), dim=-1).square().cpu().numpy()
        now = mean.cpu().numpy()
        total = self.count + count
        gap = now - self.mean
        # two sets of values joined: Chan, Golub and LeVeque, 1979
        self.square = np.asarray(self.square + square + gap**2 * self.count * count / total)
        self.mean = np.asarray(self.mean + gap * count / total)
        self.size = np.asarray(self.size + (size - self.size) * count / total)
        self.count = total

    def range(self, where: str) -> tuple[Ends, Ends]:
        """See :meth:`Observer.range`."""
        low, high = super().range(where)
        if self.spec is None:
            raise DataError("calibration never reached it", where=where, hint="Give batches that run this part")
        return self.found(low, high, self.spec)

    def held(self) -> list[Ends]:
        """See :meth:`Observer.held`."""
        ends = super().held()
        return [*ends, np.asarray(self.count), self.mean, self.square, self.size] if ends else []

    def go_on(self, held: Sequence[Ends], spec: QuantSpec) -> None:
        """See :meth:`Observer.go_on`."""
        super().go_on(held, spec)
        if held:
            count, self.mean, self.square, self.size = held[2:]
            self.count, self.spec = float(count.reshape(-1)[0]), spec

    @property
    def deviation(self) -> Ends:
        """Standard deviation of the values (of the population)."""
        return np.asarray(np.sqrt(self.square / max(self.count, 1.0)))

    @abstractmethod
    def found(self, low: Ends, high: Ends, spec: QuantSpec) -> tuple[Ends, Ends]:
        """The range.

        Args:
            low: the smallest value.
            high: the largest.
            spec: of the grid.
        """
