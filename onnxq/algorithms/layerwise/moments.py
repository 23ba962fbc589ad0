"""Second moments of the inputs of layers: with them the error of any change of a weight is known without a run.

Quantizing the layers before it changes the input of a layer ``y = W x + b`` by ``e``, and by ``r`` what is added to its
output at the end of a branch (see :mod:`onnxq.algorithms.layerwise.joins`): the output is off by ``u = W e + r``. With
a change ``D`` of the weight and ``db`` of the bias it is off by ``D (x + e) + u + db``. Over samples and positions the
mean square of that is::

    tr(D S D^T) + 2 tr(R D^T) + |D m + v + db|^2 + ...      the rest does not depend on D and db

with the moments about the means ``S`` of ``x + e`` and ``R`` of ``u`` against ``x + e``, and the means ``m`` of
``x + e`` and ``v`` of ``u``. Layers that read the float model's input have ``u = 0``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments"]

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of one layer's input over samples and positions.

    Attributes:
        count: positions seen.
        mean: mean of the input, float64 (groups, inputs).
        spread: second moments about the mean, float64 (groups, inputs, inputs).
        shift: mean by which the output is off with the float model's weight and bias, (groups, outputs); ``None`` where
            the input is the float model's.
        drift: moments of that (first index) against the input (second), about the means, (groups, outputs, inputs); or
            ``None``.
    """

    count: int
    mean: Doubles
    spread: Doubles
    shift: Doubles | None = None
    drift: Doubles | None = None

    def total(self) -> Doubles:
        """Second moments about zero, (groups, inputs, inputs)."""
        return self.spread + self.mean[:, :, None] * self.mean[:, None, :]

    def drift_total(self) -> Doubles | None:
        """:attr:`drift` about zero; or ``None``."""
        if self.drift is None or self.shift is None:
            return None
        return np.asarray(self.drift + self.shift[:, :, None] * self.mean[:, None, :])

    def joined(self, other: Moments) -> Moments:
        """Moments of the positions of both."""
        count = self.count + other.count
        mine, theirs = self.count / count, other.count / count
        apart = other.mean - self.mean

        def mixed(first: Doubles, second: Doubles) -> Doubles:
            return np.asarray(mine * first + theirs * second)

        mean, spread = mixed(self.mean, other.mean), mixed(self.spread, other.spread)
        spread += mine * theirs * apart[:, :, None] * apart[:, None, :]
        if self.shift is None or other.shift is None or self.drift is None or other.drift is None:
            return Moments(count, mean, spread)
        drift = mixed(self.drift, other.drift)
        drift += mine * theirs * (other.shift - self.shift)[:, :, None] * apart[:, None, :]
        return Moments(count, mean, spread, mixed(self.shift, other.shift), drift)

    def offset(self, change: Doubles) -> Doubles:
        """Change of each output's mean, (groups, outputs), for a change of the weight (groups, outputs, inputs)."""
        found = np.einsum("goi,gi->go", change, self.mean)
        return np.asarray(found if self.shift is None else found + self.shift)

    def error(self, change: Doubles, bias: Doubles | float = 0.0) -> Doubles:
        """Mean square of the change of each output, (groups, outputs), less a part that is the same for all changes.

        Args:
            change: of the weight, (groups, outputs, inputs).
            bias: change of the bias, (groups, outputs).
        """
        found = np.einsum("goi,goi->go", change @ self.spread, change)
        if self.drift is not None:
            found = found + 2.0 * np.einsum("goi,goi->go", self.drift, change)
        return np.asarray(found + np.square(self.offset(change) + bias))
