"""What the figures of an artifact compare: a runtime with its simulation, or that with the float model inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from onnxq.backend import Backend
from onnxq.given.artifact import rewritten_before
from onnxq.measuring.chosen_rows import Rows
from onnxq.measuring.loss import Loss, losses
from onnxq.measuring.metrics import Errors
from onnxq.measuring.side_by_side import errors_between, steps_between
from onnxq.runtimes.runtime import Runtime

__all__ = ["Figures", "against_float", "against_simulation"]

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Figures:
    """What was compared with what, and what that showed, as :class:`onnxq.measuring.agreement.Agreement` tells it."""

    compared: str
    outputs: Mapping[str, Errors]
    lsb: Mapping[str, float] = field(default_factory=dict)
    against_float: Mapping[str, Loss] = field(default_factory=dict)


def against_simulation(
    runtime: Runtime,
    computed: Sequence[Arrays],
    simulated: Sequence[Arrays],
    floats: Sequence[Arrays],
    steps: Mapping[str, float],
    rows: Mapping[str, Rows],
) -> Figures:
    """What a runtime computed: against the simulation, and how much more it loses to the float model than that."""
    compared = f"{runtime.title} against onnxruntime without optimizations"
    outputs, lsb = errors_between(simulated, computed, rows), steps_between(simulated, computed, steps, rows)
    return Figures(compared, outputs, lsb, losses(floats, simulated, computed, rows))


def against_float(
    target: Backend,
    runtime: Runtime | None,
    simulated: Sequence[Arrays],
    floats: Sequence[Arrays],
    rows: Mapping[str, Rows],
    *,
    rounded: bool,
) -> Figures:
    """The simulation against the float model inside, where no runtime computes; ``rounded``: in that, too."""
    what = f"{runtime.title} compiled it, without running it; " if runtime is not None else ""
    left = "; weights in blocks and ranges taken at run time are in both, and not in these figures" if rounded else ""
    compared = f"{what}simulated in onnxruntime, against the float model inside{rewritten_before(target)}{left}"
    return Figures(compared, errors_between(floats, simulated, rows))
