"""How the sites of a model that was read belong together: shared scales of data movement, scales of biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Edge, Site
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams

__all__ = ["related"]

_CLOSE = 1e-6
"""Relative difference of a bias's scale from the product: that of a float32 multiplication, and some room."""


def related(
    model: ir.Model, backend: Backend, sites: Sequence[Site], numbers: Mapping[str, QParams]
) -> tuple[Site, ...]:
    """Sites with the ties and factors that the numbers show, so that numbers changed later keep to them.

    What the target only moves is tied to the input where both have the same numbers. A bias whose scale is the product
    of those of data and weight has the two as factors.

    Args:
        model: the float model inside.
        backend: says what moves data.
        sites: of the quantizers that were found.
        numbers: parameters by site name.
    """
    ties = _ties(model, backend, sites, numbers)
    factors = _factors(model, sites, numbers)
    return tuple(replace(s, tied_to=ties.get(s.name), factors=factors.get(s.name)) for s in sites)


def _ties(model: ir.Model, backend: Backend, sites: Sequence[Site], numbers: Mapping[str, QParams]) -> dict[str, str]:
    data: dict[str, Site] = {}
    for site in sites:
        if site.role in ("activation", "constant"):
            data.setdefault(site.tensor, site)
    ties: dict[str, str] = {}
    for node in all_nodes(model):
        rule = row(backend, node)
        source = data.get(node.inputs[0].name or "") if node.inputs and node.inputs[0] is not None else None
        if rule is None or rule.kind is not Kind.MOVEMENT or source is None:
            continue
        for value in node.outputs:
            moved = data.get(value.name or "")
            if moved is not None and numbers[moved.name] == numbers[source.name] and moved is not source:
                ties[moved.name] = source.name
    return ties


def _factors(model: ir.Model, sites: Sequence[Site], numbers: Mapping[str, QParams]) -> dict[str, tuple[str, str]]:
    by_edge = {edge: site for site in sites for edge in site.readers}
    behind = {site.tensor: site for site in sites if site.role == "activation" and site.produced}
    nodes = {node.name: node for node in all_nodes(model)}
    found: dict[str, tuple[str, str]] = {}
    for site in sites:
        if site.role != "bias":
            continue
        for edge in site.readers:
            value = nodes[edge.node].inputs[0]
            data = by_edge.get(Edge(edge.node, 0)) or behind.get((value.name or "") if value is not None else "")
            weight = by_edge.get(Edge(edge.node, 1))
            if data is None or weight is None or weight.role != "weight" or numbers[data.name].scale.ndim:
                continue
            product = (numbers[data.name].scale * numbers[weight.name].scale).reshape(-1)
            scale = numbers[site.name].scale.reshape(-1)
            if product.size in (1, scale.size) and np.allclose(scale, product, rtol=_CLOSE, atol=0.0):
                found[site.name] = (data.name, weight.name)
    return found
