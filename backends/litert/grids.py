"""Grids as LiteRT's kernels want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.placed import own_grid
from onnxq.graph.traverse import all_nodes
from onnxq.numbers import fit_biases
from onnxq.plan import Plan
from onnxq.qparams import QParams

__all__ = ["fit_grids"]

_OF_SUM: Mapping[int, float] = {8: 2.0**-18, 16: 2.0**-13}
"""Bits → least scale of a sum, as a share of its operands': at half of that ADD's kernel ends the program."""
_OF_PRODUCTS: Mapping[int, float] = {8: 1 / 255, 16: 1 / 127}
"""Bits → least scale of a layer's result, as a share of its products': XNNPACK takes no file with 1/256 of that or
less, and sums of 64 bits are multiplied by numbers up to 128.
"""


def fit_grids(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Give what kernels write by themselves its grid, and what is far smaller than what it is made of a wider one.

    Args:
        model: the float model.
        plan: where it is quantized.
        numbers: changed in place: tied sites together, biases as the scales of data and weight then ask for.
    """
    makers = {value.name: node for node in all_nodes(model) for value in node.outputs}
    sites = {site.tensor: site for site in plan.sites if site.name in numbers}
    changed: dict[str, QParams] = {}

    def scale(value: ir.Value | None) -> float:
        """The largest scale of a tensor; 0 of one that has none."""
        site = sites.get(value.name or "") if value is not None else None
        return float(changed.get(plan.root(site).name, numbers[site.name]).scale.max()) if site is not None else 0.0

    for site in plan.sites:
        maker = makers.get(site.tensor)
        if site.name not in numbers or maker is None or site.role != "activation":
            continue
        name = plan.root(site).name
        old = changed.get(name, numbers[site.name])
        own = own_grid(maker.op_type, old.spec.bits)
        if own is not None and site.tied_to is None:
            fixed, zero = own
            changed[name] = replace(old, scale=np.asarray(fixed, np.float32), zero_point=np.asarray(zero, np.int64))
        elif float(old.scale) < (least := _least(_layer(maker, plan), plan, scale, old.spec.bits)):
            changed[name] = replace(old, scale=np.asarray(least, np.float32))
    for site in plan.sites:
        root = plan.root(site).name
        if root in changed:
            numbers[site.name] = replace(changed[root], spec=site.spec)
    if changed:
        fitted = dict(numbers)
        fit_biases(model, plan, fitted)
        numbers.update(fitted)
    return []


def _layer(maker: ir.Node, plan: Plan) -> ir.Node:
    """The node that an absorbed activation function is computed with; any other node itself."""
    before = maker.inputs[0].producer() if maker.name in plan.absorbed and maker.inputs[0] is not None else None
    return before if before is not None else maker


def _least(node: ir.Node, plan: Plan, scale: Callable[[ir.Value | None], float], bits: int) -> float:
    """The least scale of a node's output that kernels take."""
    if node.name not in plan.quantized:
        return 0.0
    if node.op_type in ("Add", "Sub"):
        return max(map(scale, node.inputs)) * _OF_SUM[bits]
    layer = node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    return scale(node.inputs[0]) * scale(node.inputs[1]) * _OF_PRODUCTS[bits] if layer else 0.0
