"""Quantizers that repeat what another one in front of them has done, left out."""

from __future__ import annotations

from dataclasses import replace

from onnxq.backend import Kind
from onnxq.plan import Edge, Site
from onnxq.planning.table_rows import row
from onnxq.quantized import Quantized

__all__ = ["without_repeats"]


def without_repeats(quantized: Quantized) -> Quantized:
    """The same without quantizers behind data movement and Concat whose inputs are on the same grid already.

    A repeated quantizer changes no number, and some runtimes compute it in a kernel of its own: OpenVINO where it has a
    zero point, an FPGA in any case.

    Args:
        quantized: left unchanged.
    """
    plan, dropped = quantized.plan, _repeated(quantized)
    sites = tuple(
        replace(site, tied_to=None) if site.tied_to in dropped else site
        for site in plan.sites
        if site.name not in dropped
    )
    return replace(quantized, plan=replace(plan, sites=sites))


def _repeated(quantized: Quantized) -> set[str]:
    """Names of sites behind data movement and Concat whose inputs are all on the same grid; not of model outputs."""
    plan, numbers = quantized.plan, quantized.qparams
    by_edge = plan.by_edge()
    of_tensor: dict[str, list[Site]] = {}
    for site in plan.sites:
        of_tensor.setdefault(site.tensor, []).append(site)
    outputs = {v.name for v in quantized.model.graph.outputs}
    found: set[str] = set()
    for node in quantized.model.graph.all_nodes():
        rule = row(quantized.backend, node)
        if node.name not in plan.quantized or rule is None or not (rule.kind is Kind.MOVEMENT or rule.shares(node)):
            continue
        before = [by_edge.get(Edge(node.name or "", k)) for k in range(len(node.inputs) if rule.data is None else 1)]
        grids = [numbers.get(site.name) if site is not None else None for site in before]
        behind = [
            site for value in node.outputs if value.name not in outputs for site in of_tensor.get(value.name or "", ())
        ]
        found.update(site.name for site in behind if all(grid == numbers.get(site.name) for grid in grids))
    return found
