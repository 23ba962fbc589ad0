"""The way back from a table: the target's own plan of the float model, as far as the table has numbers for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.graph.traverse import all_graphs
from onnxq.numbers import fit_biases
from onnxq.options import Options
from onnxq.plan import Plan, Site
from onnxq.planning.planner import settled_plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.reading.sound_numbers import check_table_numbers

__all__ = ["NO_ENTRY", "planned", "reading", "writing"]

NO_ENTRY = "the table has no entry for it"
"""Why a node stays float of which the table knows nothing."""


def planned(
    model: ir.Model,
    backend: Backend,
    find: Callable[[Site], QParams | None],
    unknown: Mapping[str, str] | None = None,
) -> Quantized:
    """A float model quantized with numbers from a table; a node that lacks some of its numbers stays float.

    Args:
        model: left unchanged.
        backend: the target; its table of rules says which tensors are quantized.
        find: the numbers of a weight, a constant or an activation, ``None`` where the table has none.
        unknown: nodes that stay float, with the reasons.

    Raises:
        BackendError: numbers of the table are none to compute with.
    """

    shapes = {value.name: value.shape for value in _values(model)}

    def found(plan: Plan) -> dict[str, QParams]:
        numbers = {s.name: qp for s in plan.sites if s.role != "bias" and (qp := find(s)) is not None}
        for name, qp in numbers.items():
            shape = shapes.get(plan.by_name[name].tensor)
            check_table_numbers(plan.by_name[name].tensor, qp, shape.dims if shape is not None else None, stored=False)
        return numbers

    def lacking(plan: Plan) -> dict[str, str]:
        return dict.fromkeys((*reading(plan, found(plan)), *writing(model, plan, found(plan))), NO_ENTRY)

    plan = settled_plan(model, backend, Options(placement="all"), lacking, unknown)
    numbers = found(plan)
    result = model.clone()
    fit_biases(result, plan, numbers)
    return Quantized(result, plan, numbers, backend)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in all_graphs(model):
        yield from (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))


def reading(plan: Plan, numbers: Mapping[str, QParams]) -> dict[str, str]:
    """Quantized nodes that read a tensor without numbers, and the tensor."""
    sites = [site for site in plan.sites if site.role != "bias" and site.name not in numbers]
    return {edge.node: site.tensor for site in sites for edge in site.readers if edge.node in plan.quantized}


def writing(model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> dict[str, str]:
    """Quantized nodes behind which a quantizer is planned without numbers, and the tensor."""
    outputs = {site.tensor for site in plan.sites if site.produced and site.name not in numbers}
    found = {}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name in outputs:
                found[plan.absorbed.get(node.name or "", node.name or "")] = value.name
    return {node: tensor for node, tensor in found.items() if node in plan.quantized}
