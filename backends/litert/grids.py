"""Grids as LiteRT's kernels want them."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.placed import OWN_GRIDS
from onnxq.graph.traverse import all_nodes
from onnxq.numbers import fit_biases
from onnxq.plan import Plan
from onnxq.qparams import QParams

__all__ = ["fit_grids"]

_LEAST = 2.0**-18
"""Least scale of a sum, as a share of its operands': at half of that ADD's kernel ends the program."""


def fit_grids(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Give what kernels write by themselves its grid, and sums that are far smaller than their operands a wider one.

    Args:
        model: the float model.
        plan: where it is quantized.
        numbers: changed in place: tied sites together, biases as the scales of data and weight then ask for.
    """
    makers = {value.name: node for node in all_nodes(model) for value in node.outputs}
    tensors = {site.tensor: site.name for site in plan.sites if site.name in numbers}
    changed: dict[str, QParams] = {}
    for site in plan.sites:
        old, maker = numbers.get(site.name), makers.get(site.tensor)
        if old is None or maker is None or site.tied_to is not None or site.role != "activation":
            continue
        if maker.op_type in OWN_GRIDS:
            (scale,), (zero,) = OWN_GRIDS[maker.op_type].scale, OWN_GRIDS[maker.op_type].zero_point
            changed[site.name] = replace(
                old, scale=np.asarray(scale, np.float32), zero_point=np.asarray(zero, np.int64)
            )
        elif maker.op_type in ("Add", "Sub") and maker.name in plan.quantized:
            read = [numbers[tensors[v.name]] for v in maker.inputs if v is not None and v.name in tensors]
            least = max((float(one.scale.max()) for one in read), default=0.0) * _LEAST
            if float(old.scale) < least:
                changed[site.name] = replace(old, scale=np.asarray(least, np.float32))
    for site in plan.sites:
        root = plan.root(site).name
        if root in changed:
            numbers[site.name] = replace(changed[root], spec=site.spec)
    if changed:
        fitted = dict(numbers)
        fit_biases(model, plan, fitted)
        numbers.update(fitted)
    return []
