"""Limits of the HTP on scales and zero points."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.calibration.weights import weight_range
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import constant_array
from onnxq.numbers import fit_biases
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.ranged import from_range

__all__ = ["keep_to_limits"]

_LEAST_RANGE = 1e-4
"""Least width of a real range."""
_WIDE = {
    "Sigmoid": (1 / 65536, 0),
    "HardSigmoid": (1 / 65536, 0),
    "Tanh": (1 / 32768, 32768),
    "LpNormalization": (1 / 32766, 32768),
}
"""Scale and zero point of outputs of 16 bits."""
_SOFTMAX_UNIT = 2.0**-16
"""The scale of a Softmax of 8 bits the HTP cuts to a multiple of this: rows come out too large by what is cut."""


def keep_to_limits(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Widen ranges below 1e-4, give what has a scale of its own in 16 bits that scale, and a Softmax of 8 a multiple.

    Args:
        model: the float model.
        plan: where it is quantized.
        numbers: changed in place: tied sites together, biases as the scales of data and weight then ask for.
    """
    makers = {value.name: node.op_type for node in all_nodes(model) for value in node.outputs}
    changed: dict[str, QParams] = {}
    for site in plan.sites:
        old = numbers.get(site.name)
        if old is None or site.tied_to is not None or site.role == "bias":
            continue
        new = _widened(old)
        maker = makers.get(site.tensor, "") if site.role == "activation" and site.produced else ""
        if maker == "Softmax" and site.spec.bits == 8:
            new = replace(new, scale=np.asarray(np.ceil(new.scale / _SOFTMAX_UNIT) * _SOFTMAX_UNIT, np.float32))
        wide = _WIDE.get(maker)
        if wide is not None and site.spec.bits == 16 and not site.spec.symmetric:
            new = replace(old, scale=np.asarray(wide[0], np.float32), zero_point=np.asarray(wide[1], np.int64))
        if new != old:
            changed[site.name] = new
    if not changed:
        return []
    for site in plan.sites:
        root = plan.root(site).name
        if root in changed:
            numbers[site.name] = replace(changed[root], spec=site.spec)
    fitted = dict(numbers)
    _lower(model, plan, fitted, changed)
    fit_biases(model, plan, fitted)
    numbers.update(fitted)
    return [f"limits: {len(changed)} ranges widened or fixed as the HTP needs them"]


def _lower(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams], widened: Collection[str]) -> None:
    """Scales of weights that were raised beyond their range for a bias beside data whose scale has grown, in place."""
    for site in plan.sites:
        if site.role != "bias" or site.factors is None or plan.root(plan.by_name[site.factors[0]]).name not in widened:
            continue
        weight = plan.by_name[site.factors[1]]
        value = next((v for graph in all_graphs(model) if (v := graph.initializers.get(weight.tensor))), None)
        array, now = constant_array(value), numbers[weight.name]
        if array is not None and array.size:
            full = from_range(*weight_range(array, weight.spec), weight.spec).scale
            numbers[weight.name] = replace(now, scale=np.minimum(now.scale, full))


def _widened(old: QParams) -> QParams:
    """The grid with a real range of at least 1e-4."""
    least = np.float32(_LEAST_RANGE / (old.spec.qmax - old.spec.qmin))
    narrow = old.scale < least
    if not narrow.any():
        return old
    if old.spec.symmetric:
        return replace(old, scale=np.maximum(old.scale, least))
    wide = from_range(old.lo, np.maximum(old.hi, old.lo + np.float32(_LEAST_RANGE)), old.spec)
    scale, zero = np.where(narrow, wide.scale, old.scale), np.where(narrow, wide.zero_point, old.zero_point)
    return replace(old, scale=np.asarray(scale, np.float32), zero_point=np.asarray(zero, np.int64))
