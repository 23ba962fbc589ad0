"""Numbers that were given, not found here, made to fit what a target can compute with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.plan import Plan
from onnxq.qparams import QParams

__all__ = ["fit_to_target", "moved_scales"]

_ROUNDED = 1e-4
"""Relative change of a scale up to which it counts as the same, rounded."""


def fit_to_target(model: ir.Model, plan: Plan, numbers: dict[str, QParams], target: Backend) -> list[str]:
    """Apply a target's ``adjust`` to numbers that come from another tool or from training.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: site name → its grid; changed in place.
        target: the target.

    Returns:
        Notes; each tensor whose grid was moved by more than rounding is named. Biases and tied tensors follow, and are
        not.
    """
    if target.adjust is None:
        return []
    given = dict(numbers)
    notes = target.adjust(model, plan, numbers)
    own = (s for s in plan.sites if s.name in given and s.role != "bias" and s.tied_to is None)
    moved = [site.tensor for site in own if moved_scales(given[site.name], numbers[site.name])]
    moved = [name for name in moved if not any(f"'{name}'" in note for note in notes)]
    if moved:
        names = ", ".join(map(repr, moved))
        notes = [*notes, f"{target.name} cannot compute with the scales given for {names}: they were changed"]
    return notes


def moved_scales(given: QParams, now: QParams) -> int:
    """How many numbers of a grid, one for each channel where it has such, differ from those of another by more than
    rounding.
    """
    if given.scale.shape != now.scale.shape:
        return max(1, now.scale.size)
    scale = ~np.isclose(given.scale, now.scale, rtol=_ROUNDED, atol=0.0)
    return int(np.count_nonzero(scale | (given.zero_point != now.zero_point)))
