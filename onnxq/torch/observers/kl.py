"""The clip of least Kullback-Leibler divergence, over a histogram of all batches."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.calibration.ranges.entropy import select
from onnxq.calibration.statistics import TensorStatistics
from onnxq.spec import PerChannel, QuantSpec
from onnxq.torch.observers.base import Ends, rows
from onnxq.torch.observers.minmax import MinMax

__all__ = ["KL"]


class KL(MinMax):
    """The range of :mod:`onnxq.calibration.ranges.entropy` (Migacz, 2017) on all values watched, channel by channel."""

    uniform_only = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[TensorStatistics] = []
        self.spec: QuantSpec | None = None

    def watch(self, x: torch.Tensor, spec: QuantSpec) -> None:
        """See :meth:`Observer.watch`."""
        super().watch(x, spec)
        if not x.numel():
            return
        values = rows(x, spec).cpu().numpy()
        if self.spec is None:
            self.seen = [TensorStatistics("observed") for _ in values]
        self.spec = spec
        for statistics, row in zip(self.seen, values, strict=True):
            statistics.update(np.ascontiguousarray(row), statistics.samples)

    def range(self, where: str) -> tuple[Ends, Ends]:
        """See :meth:`Observer.range`."""
        low, high = super().range(where)
        if self.spec is None:
            return low, high
        spec = self.spec
        found = np.array([select(statistics, spec) for statistics in self.seen])
        ends = (found[:, 0], found[:, 1])
        return ends if isinstance(spec.granularity, PerChannel) else (ends[0].reshape(()), ends[1].reshape(()))

    def forget(self) -> None:
        """See :meth:`Observer.forget`."""
        super().forget()
        self.seen, self.spec = [], None
