"""The scale that LSQ starts from: ``2 mean |x| / sqrt(Q)`` (Esser et al., 2020, section 2.1)."""

from __future__ import annotations

import numpy as np

from onnxq.ranged import MIN_SCALE
from onnxq.spec import QuantSpec
from onnxq.torch.observers.base import Ends, grid_ends
from onnxq.torch.observers.moments import Moments

__all__ = ["LSQScale"]


class LSQScale(Moments):
    """``2 mean |x| / sqrt(Q)`` of all values watched; ``Q`` is the number of integers on the larger side of zero.

    That is ``qmax`` of a signed symmetric grid, all integers of an asymmetric one where no value is negative (or none
    positive), half of them where there are both. The zero point of an asymmetric grid puts the smallest value at its
    low end.
    """

    uniform_only = True

    def found(self, low: Ends, high: Ends, spec: QuantSpec) -> tuple[Ends, Ends]:
        """See :meth:`Moments.found`."""
        steps = spec.qmax - spec.qmin
        half = max(steps // 2, 1)
        one_sided = np.logical_or(low >= 0, high <= 0) & (not spec.symmetric)
        scale = 2.0 * self.size / np.sqrt(np.where(one_sided, steps, half))
        return grid_ends(np.maximum(scale, MIN_SCALE), low, spec)
