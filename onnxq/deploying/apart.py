"""A tensor that a model quantizes in two ways, for different readers, becomes two tensors: each has one grid."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import KEPT
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Site
from onnxq.quantized import Quantized

__all__ = ["apart"]


def apart(quantized: Quantized) -> Quantized:
    """The same, where no tensor has two grids.

    Of a constant the readers of every other grid get a copy, of what is computed the result of an Identity.

    Args:
        quantized: as read from a model; changed in place.
    """
    first: dict[tuple[bool, str], Site] = {}
    changed: dict[str, Site] = {}
    nodes = {node.name: node for node in all_nodes(quantized.model)}
    values = {v.name: v for node in nodes.values() for v in node.outputs}
    for graph in all_graphs(quantized.model):
        values |= {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    namer = Namer(quantized.model)
    for site in quantized.plan.sites:
        one = first.setdefault((site.role == "bias", site.tensor), site)
        value = values.get(site.tensor)
        if value is None or quantized.qparams[one.name] == quantized.qparams[site.name]:
            continue
        other = _copy(value, namer)
        for edge in site.readers:
            nodes[edge.node].replace_input_with(edge.index, other)
        changed[site.name] = replace(site, tensor=other.name or "", tied_to=None)
    if not changed:
        return quantized
    sites = tuple(changed.get(site.name, site) for site in quantized.plan.sites)
    return replace(quantized, plan=replace(quantized.plan, sites=sites))


def _copy(value: ir.Value, namer: Namer) -> ir.Value:
    array, maker = constant_array(value), value.producer()
    if array is not None and isinstance(value.graph, ir.Graph):
        return set_constant(value.graph, namer, value.name or "constant", array)
    node = ir.node("Identity", [value], name=namer.node(f"{value.name}_Identity"))
    node.metadata_props[KEPT] = "between two quantizers"
    made = node.outputs[0]
    made.name, made.type = namer.fresh(f"{value.name}_again"), value.type
    made.shape = value.shape.copy() if value.shape is not None else None
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    if maker is not None:
        graph.insert_after(maker, [node])
    else:
        graph.insert_before(graph[0], [node])
    return made
