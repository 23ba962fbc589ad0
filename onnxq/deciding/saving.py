"""How much of the float model's time integers save, by a target's table of costs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.planning.table_rows import row

__all__ = ["most_saved"]


def most_saved(model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int]) -> float:
    """The share of the float model's time that integers save at most: what conversions cost is left out.

    Args:
        model: the float model.
        plan: where it is quantized.
        backend: its table has the costs; operators that it does not know count as taking no time.
        sizes: tensor name → number of elements, where it is known.

    Returns:
        0 where nothing is quantized; less where integers take longer.
    """
    whole = saved = 0.0
    for node in all_nodes(model):
        rule = row(backend, node)
        if rule is None:
            continue
        as_float, as_integer = (cost * sizes.get(node.outputs[0].name or "", 1) for cost in rule.costs(node))
        whole += as_float
        saved += as_float - as_integer if node.name in plan.quantized else 0.0
    return saved / whole if whole > 0 else 0.0
