"""The smallest and largest value of all batches."""

from __future__ import annotations

import numpy as np

from onnxq.torch.observers.base import Ends, Observer

__all__ = ["MinMax"]


class MinMax(Observer):
    """The smallest and largest value of all batches."""

    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """See :meth:`Observer.joined`."""
        return np.asarray(outer(old, new))
