"""What an artifact loses against the float model inside it, in its runtime and in simulation.

Over a deep network differences of a step add up: two runtimes that are both right may end as far from each other as
each is from the float model. One that is wrong is farther from it than the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from onnxq.measuring.chosen_rows import Rows
from onnxq.measuring.metrics import jsonable
from onnxq.measuring.outputs import NONE
from onnxq.measuring.side_by_side import errors_between

__all__ = ["Loss", "losses", "worse_in_runtime"]

_LEAST = 10.0
"""dB of the simulation below which nothing is left that a runtime could lose."""
_MORE = 3.0
"""dB that a runtime may lose more: as much noise again as quantization makes, from its own rounding."""
_VISIBLE = 40.0
"""dB below which it is more than another order of float sums."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Loss:
    """How far an output is from the float model's, over all samples.

    Attributes:
        runtime: SQNR in dB of what the runtime computes.
        simulation: of what onnxruntime computes without optimizations.
    """

    runtime: float
    simulation: float

    @property
    def is_that_of_quantizing(self) -> bool:
        """Whether the runtime is as near to the float model as the simulation, but for its own rounding."""
        return self.simulation >= _LEAST and self.runtime >= self.simulation - _MORE

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {name: jsonable(value) for name, value in vars(self).items()}


def losses(
    floats: Sequence[Arrays],
    simulated: Sequence[Arrays],
    computed: Sequence[Arrays],
    rows: Mapping[str, Rows] = NONE,
) -> dict[str, Loss]:
    """Output → what it loses; of float outputs that have the float model's shape in all samples.

    Args:
        floats: for each sample what the float model gives.
        simulated: what the simulation of the artifact gives.
        computed: what its runtime gives.
        rows: see :func:`onnxq.measuring.chosen_rows.chosen_rows`.
    """
    simulation, runtime = (errors_between(floats, given, rows) for given in (simulated, computed))
    return {
        name: Loss(runtime[name].sqnr, errors.sqnr)
        for name, errors in simulation.items()
        if name in runtime and not (errors.reshaped or runtime[name].reshaped)
        if not (math.isnan(errors.sqnr) or math.isnan(runtime[name].sqnr))
    }


def worse_in_runtime(lost: Mapping[str, Loss]) -> bool:
    """Whether an output loses more in the runtime than in simulation, and more than another order of sums makes.

    Args:
        lost: output → what it loses.
    """
    return any(loss.runtime < min(loss.simulation - _MORE, _VISIBLE) for loss in lost.values())
