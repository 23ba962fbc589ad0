"""Activation functions that the model given has between two quantizers, and that need both in the result as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.render.limits import saturates

__all__ = ["kept_between"]

_WHY = "it stands between two quantizers in the model given, and the one behind does not end where it does"


def kept_between(
    model: ir.Model, plan: Plan, numbers: Mapping[str, QParams], target: Backend, has_numbers: Callable[[str], bool]
) -> dict[str, str]:
    """Functions to be computed apart from the operator in front of them, and why.

    Where only a zero point can stand for a function (see ``absorbs_by_zero_point`` of :class:`onnxq.backend.Backend`),
    and the grid behind it has none that does, the two would be computed in float: the operator keeps a quantizer of its
    own if the model given has one there.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: site name → its grid.
        target: the target.
        has_numbers: whether the model given quantizes a tensor as the target can.
    """
    if not target.absorbs_by_zero_point or not plan.absorbed:
        return {}
    behind = {s.tensor: numbers[s.name] for s in plan.sites if s.produced and s.name in numbers}
    found = {}
    for node in all_nodes(model):
        if (node.name or "") not in plan.absorbed or node.inputs[0] is None:
            continue
        grid = behind.get(node.outputs[0].name or "")
        if grid is not None and not saturates(node, grid) and has_numbers(node.inputs[0].name or ""):
            found[node.name or ""] = _WHY
    return found
