"""Operators behind which a target wants a quantizer that the model given has not."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.render.reading.planned import writing

__all__ = ["open_units"]


def open_units(
    model: ir.Model,
    plan: Plan,
    numbers: Mapping[str, QParams],
    *,
    known: Collection[str],
    in_float: Collection[str],
    complete: bool,
) -> dict[str, str]:
    """What stays float because nothing quantizes what it writes, and that tensor.

    Of an operator with an activation function that is computed with it, whose result has a quantizer before the
    function but none behind, it is the function alone: the two are then computed one after the other.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: site name → its grid.
        known: activations that the model given quantizes.
        in_float: tensors of which it also reads what is not quantized: no quantizer stands directly behind those.
        complete: the target needs a quantizer behind every operator, see :class:`onnxq.backend.Backend`; else only the
            functions are told.
    """
    behind = {
        n: qp for n, qp in numbers.items() if not (plan.by_name[n].produced and plan.by_name[n].tensor in in_float)
    }
    found = writing(model, plan, behind)
    functions: dict[str, tuple[str, str]] = {}  # layer -> the function computed with it, and what the two write
    for node in model.graph.all_nodes():
        layer = plan.absorbed.get(node.name or "")
        if layer is None or node.inputs[0] is None or found.get(layer) != node.outputs[0].name:
            continue
        before = node.inputs[0].name
        if before in known and before not in in_float:
            functions[layer] = (node.name or "", found[layer])
    lacks = {node: tensor for node, tensor in found.items() if complete and node not in functions}
    return lacks | dict(functions.values())
