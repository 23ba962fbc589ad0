"""The running mean of a quantile of each batch's absolute values."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.spec import QuantSpec
from onnxq.torch.observers.base import Ends, rows
from onnxq.torch.observers.ema import EMAMinMax
from onnxq.torch.parameters import require

__all__ = ["EMAQuantile"]

_FEW = 64
"""Where one value of so many or fewer lies beyond the quantile, those are found."""


class EMAQuantile(EMAMinMax):
    """The running mean of ends beyond which ``1 - quantile`` of the absolute values lie.

    Args:
        momentum: share that the range so far keeps at each batch.
        quantile: share of the values inside, of a channel or the tensor.
    """

    def __init__(self, momentum: float = 0.9, quantile: float = 0.9999) -> None:
        super().__init__(momentum)
        require("observer 'quantile', quantile", quantile, 0, 1)
        self.quantile = quantile

    def batch(self, x: torch.Tensor, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Observer.batch`; the exact quantile, without a histogram."""
        low, high = super().batch(x, spec)
        size = rows(x, spec).abs()
        keep = min(max(int(np.ceil(self.quantile * size.shape[1])), 1), size.shape[1])
        above = size.shape[1] - keep + 1
        if above * _FEW < size.shape[1]:  # ten times faster than kthvalue
            found = torch.topk(size, above, dim=1, sorted=False).values.amin(1)
        else:
            found = torch.kthvalue(size, keep, dim=1).values
        clip = found.cpu().numpy().astype(np.float64)
        return np.maximum(low, -clip), np.minimum(high, clip)
