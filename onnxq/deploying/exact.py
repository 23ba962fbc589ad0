"""Constants that a model given leaves float, though a grid holds them as they are."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.traverse import all_constants
from onnxq.graph.values import constant_array
from onnxq.plan import Plan, Site
from onnxq.qparams import QParams, dequantize, quantize
from onnxq.ranged import from_range
from onnxq.spec import PerChannel

__all__ = ["hold_exact_constants"]

_ROUNDED = 1e-6
"""Relative difference that float32 rounding of a scale makes."""


def hold_exact_constants(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> None:
    """Give constants without numbers the grid of their own range, where that loses nothing.

    They are operands, as a bound or a divisor, and weights of one number a channel: a batch normalization alone that a
    target has as a convolution.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: site name → its grid; changed in place. A constant that shares its grid with others gets none here.
    """
    constants = all_constants(model)
    shared = {site.tied_to for site in plan.sites}
    for site in plan.sites:
        if site.role not in ("constant", "weight") or site.name in numbers:
            continue
        if site.tied_to is not None or site.name in shared:
            continue
        array = constant_array(constants.get(site.tensor))
        if array is None or array.dtype != np.float32 or not array.size or not np.isfinite(array).all():
            continue
        own = _of_range(array, site)
        if own is not None and np.allclose(dequantize(quantize(array, own), own), array, rtol=_ROUNDED, atol=0.0):
            numbers[site.name] = own


def _of_range(array: NDArray[np.float32], site: Site) -> QParams | None:
    """The grid of a constant's own range; None for weights of several numbers a scale."""
    if site.role == "constant":
        own = from_range(array.min(), array.max(), site.spec)
        return own if own.scale.ndim == 0 else None
    grain = site.spec.granularity
    if not isinstance(grain, PerChannel) or array.shape[grain.axis] != array.size:
        return None
    return from_range(array.reshape(-1), array.reshape(-1), site.spec)
