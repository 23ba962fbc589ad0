"""The running mean of the batches' smallest and largest values (Jacob et al., 2018, section 3.1)."""

from __future__ import annotations

import numpy as np

from onnxq.torch.observers.base import Ends, Observer
from onnxq.torch.parameters import require

__all__ = ["EMAMinMax"]


class EMAMinMax(Observer):
    """The running mean of the batches' ends, begun with the first.

    Args:
        momentum: share that the range so far keeps at each batch.
    """

    def __init__(self, momentum: float = 0.9) -> None:
        require("observer, momentum", momentum, 0, 1)
        super().__init__()
        self.momentum = momentum

    def joined(self, old: Ends, new: Ends, outer: np.ufunc) -> Ends:
        """See :meth:`Observer.joined`."""
        return np.asarray(self.momentum * old + (1 - self.momentum) * new)
