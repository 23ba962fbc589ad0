"""Which quantizer stands at which input of a graph."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.traverse import all_nodes
from onnxq.plan import Edge, Plan
from onnxq.spec import Scheme

__all__ = ["quantized_places", "shared_numbers"]


def quantized_places(model: ir.Model, plan: Plan) -> tuple[dict[Edge, str], dict[str, str]]:
    """Inputs that read a quantized tensor, and tensors that are quantized directly behind their producer.

    Args:
        model: the float graph of the plan.
        plan: where it is quantized.

    Returns:
        Input → name of the site whose numbers it is read with, ties resolved; and tensor → the same. Biases in units of
        data scale times weight scale have no numbers of their own, and are left out.
    """
    taken = plan.by_edge()
    values = {v.name: v for n in all_nodes(model) for v in n.outputs}
    values.update({v.name: v for v in model.graph.inputs})
    roots = shared_numbers(plan)
    edges: dict[Edge, str] = {}
    behind: dict[str, str] = {}
    for site in plan.sites:
        if site.role == "bias" and site.factors is not None:
            continue
        root = roots[site.name]
        edges.update(dict.fromkeys(site.readers, root))
        value = values.get(site.tensor)
        if site.produced and value is not None:
            behind[site.tensor] = root
            found = (Edge(use.node.name or "", use.idx) for use in value.uses())
            edges.update({edge: root for edge in found if edge not in taken})
    return edges, behind


def shared_numbers(plan: Plan) -> dict[str, str]:
    """Site → the one whose numbers it uses; on logarithmic grids all activations that meet in a layer share theirs."""
    above = {site.name: site.tied_to or site.name for site in plan.sites}

    def root(name: str) -> str:
        while above[name] != name:
            above[name] = name = above[above[name]]
        return name

    first: dict[str, str] = {}
    for site in plan.sites:
        if site.role == "activation" and site.spec.scheme is Scheme.LOGARITHMIC:
            for edge in site.readers:
                above[root(site.name)] = root(first.setdefault(edge.node, site.name))
    return {site.name: root(site.name) for site in plan.sites}
