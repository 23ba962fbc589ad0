"""The power-of-two scale that most batches want."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.spec import PerChannel, QuantSpec
from onnxq.torch.observers.base import Ends, grid_ends
from onnxq.torch.observers.minmax import MinMax
from onnxq.torch.observers.minmax_floor import best_exponent
from onnxq.torch.parameters import require

__all__ = ["PoTMode"]


class PoTMode(MinMax):
    """The scale ``2**e`` that has the least squared error on the most batches; of several the largest.

    Args:
        steps: exponents tried on a batch, downwards from the one that holds all values.
    """

    uniform_only = True

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        require("observer 'pot_mode', steps", steps, 1)
        self.steps = steps
        self.votes: dict[float, Ends] = {}
        self.spec: QuantSpec | None = None

    def watch(self, x: torch.Tensor, spec: QuantSpec) -> None:
        """See :meth:`Observer.watch`."""
        super().watch(x, spec)
        if x.numel():
            self.spec = spec
            found = best_exponent(x, *self.batch(x, spec), spec, self.steps)
            found = found if isinstance(spec.granularity, PerChannel) else found.reshape(())
            for exponent in np.unique(found).tolist():
                self.votes[exponent] = self.votes.get(exponent, np.zeros(found.shape)) + (found == exponent)

    def range(self, where: str) -> tuple[Ends, Ends]:
        """See :meth:`Observer.range`."""
        low, high = super().range(where)
        if self.spec is None:
            return low, high
        exponents = np.array(sorted(self.votes, reverse=True))
        votes = np.stack([self.votes[exponent] for exponent in exponents.tolist()])
        return grid_ends(np.exp2(exponents[np.argmax(votes, axis=0)]), low, self.spec)

    def forget(self) -> None:
        """See :meth:`Observer.forget`."""
        super().forget()
        self.votes, self.spec = {}, None
