"""Through which quantizers the nodes of a block read, and whose scales nobody else sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithms.blockwise.blocks import Block
from onnxq.plan import Edge, Site

if TYPE_CHECKING:
    from onnxq.torch.weights import ActivationGrid

__all__ = ["grids_of", "site_edges"]


def grids_of(draft: Draft, block: Block, learned: set[str], scales: bool) -> Mapping[Edge, ActivationGrid]:
    """Quantizers of everything in a block but the weights that are learned; one for all sites that share numbers."""
    from onnxq.torch.weights import ActivationGrid

    plan = draft.plan
    inside = {node.name for node in block.nodes}
    edges = site_edges(plan.sites, block.nodes)
    shared: dict[str, list[Site]] = {}
    for site in plan.sites:
        shared.setdefault(plan.root(site).name, []).append(site)
    outputs = {value.name for value in draft.model.graph.outputs}
    values = {v.name: v for node in draft.model.graph for v in node.outputs}

    def private(site: Site) -> bool:
        """Whether nothing outside of the block sees the numbers of a site."""
        for other in shared[plan.root(site).name]:
            value = values.get(other.tensor)
            users = [use.node.name for use in value.uses()] if value is not None and other.produced else []
            users += [edge.node for edge in other.readers]
            if other.fixed or other.role != "activation" or other.tensor in outputs or not inside.issuperset(users):
                return False
        return True

    made: dict[str, ActivationGrid] = {}
    found: dict[Edge, ActivationGrid] = {}
    for edge, site in edges.items():
        if site.name in learned or site.name not in draft.numbers or site.role == "bias":
            continue
        root = plan.root(site).name if site.role == "activation" else site.name
        if root not in made:
            learn = scales and site.role == "activation" and private(site)
            made[root] = ActivationGrid(draft.numbers[site.name], learn=learn)
        found[edge] = made[root]
    return found


def site_edges(sites: Sequence[Site], nodes: Sequence[ir.Node]) -> dict[Edge, Site]:
    """Input of a node → the site that it reads through."""
    named = {edge: site for site in sites for edge in site.readers}
    behind = {site.tensor: site for site in sites if site.produced}
    found = {}
    for node in nodes:
        for index, value in enumerate(node.inputs):
            edge = Edge(node.name or "", index)
            site = named.get(edge) or (behind.get(value.name or "") if value is not None else None)
            if site is not None:
                found[edge] = site
    return found
