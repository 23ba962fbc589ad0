"""Constants that a model given leaves float, though a grid holds them as they are."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_constants
from onnxq.graph.values import constant_array
from onnxq.plan import Plan
from onnxq.qparams import QParams, dequantize, quantize
from onnxq.ranged import from_range

__all__ = ["hold_exact_constants"]

_ROUNDED = 1e-6
"""Relative difference that float32 rounding of a scale makes."""


def hold_exact_constants(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> None:
    """Give constant operands without numbers the grid of their own range, where that loses nothing: a bound, a divisor.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: site name → its grid; changed in place. A constant that shares its grid with others gets none here.
    """
    constants = all_constants(model)
    shared = {site.tied_to for site in plan.sites}
    for site in plan.sites:
        if site.role != "constant" or site.name in numbers or site.tied_to is not None or site.name in shared:
            continue
        array = constant_array(constants.get(site.tensor))
        if array is None or array.dtype != np.float32 or not array.size or not np.isfinite(array).all():
            continue
        own = from_range(array.min(), array.max(), site.spec)
        if own.scale.ndim == 0 and np.allclose(dequantize(quantize(array, own), own), array, rtol=_ROUNDED, atol=0.0):
            numbers[site.name] = own
