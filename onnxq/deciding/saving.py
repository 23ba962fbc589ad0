"""How much of the float model's time integers save, by a target's table of costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.planning.conversions import entering, leaving, reordering
from onnxq.planning.table_rows import row

__all__ = ["Saving", "saving"]


@dataclass(frozen=True, slots=True)
class Saving:
    """Shares of the float model's time; 0 where nothing is quantized, less where integers take longer.

    Attributes:
        most: what the kernels save, conversions left out.
        net: what is left of it when conversions into integers and out of them are paid; infinite where the sizes of
            what runs in integers are not known, since a conversion costs something whatever its size.
    """

    most: float
    net: float


def saving(model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int]) -> Saving:
    """What a plan saves.

    Args:
        model: the float model.
        plan: where it is quantized.
        backend: its table has the costs; operators that it does not know count as taking no time.
        sizes: tensor name → number of elements, where it is known.
    """
    whole = saved = 0.0
    known = True
    for node in all_nodes(model):
        rule = row(backend, node)
        if rule is None:
            continue
        as_float, as_integer = rule.costs(node, sizes.get(node.outputs[0].name or "", 1))
        whole += as_float
        known &= node.name not in plan.quantized or node.outputs[0].name in sizes
        saved += as_float - as_integer if node.name in plan.quantized else 0.0
    if whole <= 0:
        return Saving(0.0, 0.0)
    net = (saved - _conversions(model, plan, backend, sizes)) / whole if known else math.inf
    return Saving(saved / whole, net)


def _conversions(model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int]) -> float:
    """What all quantizers of tensors that a float node makes cost, and all dequantizers that a float node reads."""
    values = {v.name: v for node in all_nodes(model) for v in (*node.inputs, *node.outputs) if v is not None}
    cost = 0.0
    for site in plan.sites:
        value = values.get(site.tensor)
        if site.role != "activation" or value is None:
            continue
        size, producer = sizes.get(site.tensor, 1), value.producer()
        if producer is None or not plan.in_integers(producer.name):
            cost += entering(backend, value, size)
            rule = row(backend, producer) if producer is not None else None
            cost += reordering(backend, value, size) if rule is not None and rule.kind is Kind.COMPUTE else 0.0
            continue
        readers = sum(not plan.in_integers(use.node.name) for use in value.uses()) + value.is_graph_output()
        cost += leaving(backend, value, size) * readers
    return cost
