"""Mean plus and minus some standard deviations, within the values seen."""

from __future__ import annotations

import numpy as np

from onnxq.spec import QuantSpec
from onnxq.torch.observers.base import Ends
from onnxq.torch.observers.moments import Moments
from onnxq.torch.parameters import require

__all__ = ["ClipStd"]


class ClipStd(Moments):
    """``max(mean - k std, min)`` to ``min(mean + k std, max)``, of all values watched.

    Args:
        deviations: ``k``.
    """

    def __init__(self, deviations: float = 2.6) -> None:
        super().__init__()
        require("observer 'clip_std', deviations", deviations, 0)
        self.deviations = deviations

    def found(self, low: Ends, high: Ends, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Moments.found`; the low end of values that are never negative stays."""
        reach = self.deviations * self.deviation
        lower = np.where(low >= 0, low, np.clip(self.mean - reach, low, high))
        return np.asarray(lower), np.asarray(np.clip(self.mean + reach, low, high))
