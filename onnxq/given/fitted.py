"""Numbers that were given, not found here, made to fit what a target can compute with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.plan import Plan
from onnxq.qparams import QParams

__all__ = ["fit_to_target"]

_LISTED = 5
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
        Notes; each tensor whose grid was moved by more than rounding is named. Biases, whose grids follow, are not.
    """
    if target.adjust is None:
        return []
    given = dict(numbers)
    notes = target.adjust(model, plan, numbers)
    own = (site for site in plan.sites if site.name in given and site.role != "bias")
    moved = [site.tensor for site in own if _is_moved(given[site.name], numbers[site.name])]
    moved = [name for name in moved if not any(f"'{name}'" in note for note in notes)]
    if moved:
        names = ", ".join(map(repr, moved[:_LISTED])) + (" and others" if len(moved) > _LISTED else "")
        notes = [*notes, f"{target.name} cannot compute with the scales given for {names}; they were moved"]
    return notes


def _is_moved(given: QParams, now: QParams) -> bool:
    same_scale = np.allclose(given.scale, now.scale, rtol=_ROUNDED, atol=0.0)
    return not (same_scale and np.array_equal(given.zero_point, now.zero_point))
