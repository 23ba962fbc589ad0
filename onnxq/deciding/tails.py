"""Arithmetic that runs in integers just before float arithmetic that blows up its noise: a Sigmoid before a Reciprocal.

Such a tail is short: the layer in front of it need not be kept float for its sake. What it costs is measured at the
outputs (:func:`onnxq.deciding.relief.costly_in_integers`).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.deciding.amplifiers import SUSPECTS
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.planning.table_rows import row

__all__ = ["amplified_tails"]


def amplified_tails(model: ir.Model, plan: Plan, backend: Backend) -> list[tuple[str, ...]]:
    """Quantized arithmetic before float amplifiers that nothing else in integers reads, in the order of the graph.

    Args:
        model: the float model.
        plan: where it is quantized.
        backend: says what is a multiply-accumulate: no tail reaches beyond one.

    Returns:
        Names of nodes, a tail each; tails that share a node are one.
    """
    nodes = list(all_nodes(model))
    tails: dict[ir.Node, dict[ir.Node, None]] = {}
    for node in reversed(nodes):
        rule = row(backend, node) if node.name in plan.quantized else None
        if rule is None or rule.kind not in (Kind.ELEMENTWISE, Kind.MOVEMENT):
            continue
        readers = [use.node for value in node.outputs for use in value.uses()]
        before = [r for r in readers if r in tails or (r.op_type in SUSPECTS and not plan.in_integers(r.name))]
        if not before or any(r not in tails and plan.in_integers(r.name) for r in readers):
            continue
        tail = {node: None, **{n: None for r in before for n in tails.get(r, ())}}
        tails.update(dict.fromkeys(tail, tail))
    distinct = {id(tail): tail for tail in tails.values()}.values()
    return [tuple(n.name or "" for n in nodes if n in tail) for tail in reversed(list(distinct))]
