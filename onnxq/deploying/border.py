"""Where a model to deploy takes integers, or gives them: the scales there are those of what computes beside them.

A DequantizeLinear of integers that are no constant, of a model input say, and a QuantizeLinear without its
DequantizeLinear, at an output, are no quantizers that can be taken out: the float model holds them. But the tensor
beside each is on their grid, so that an operator there has the numbers to compute in integers with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.integer_operators import BORDER
from onnxq.plan import Edge, Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.reading.parameters import pair_parameters
from onnxq.spec import Scheme

__all__ = ["beside_border", "with_border"]

_WIDEST = 16
"""Bits of what an activation may have: wider ones are sums."""


def with_border(quantized: Quantized) -> Quantized:
    """The same with sites for what is beside the quantizers that it holds, which are marked.

    Args:
        quantized: as read from a model; its model is changed in place.
    """
    sites, numbers = {site.name: site for site in quantized.plan.sites}, dict(quantized.qparams)
    for node in all_nodes(quantized.model):
        if node.op_type not in ("DequantizeLinear", "QuantizeLinear") or node.domain not in OF_QUANTIZERS:
            continue
        given = node.op_type == "DequantizeLinear"
        integers = node.inputs[0] if given else node.outputs[0]
        value = node.outputs[0] if given else node.inputs[0]
        if integers is None or value is None or is_constant(node.inputs[0]):
            continue
        found = pair_parameters(node, integers.dtype)
        if isinstance(found, str) or found.spec.bits > _WIDEST or found.spec.scheme is not Scheme.UNIFORM:
            continue
        edges = ((use.node, use.idx) for use in value.uses()) if given else ((node, 0),)
        _add(sites, numbers, value, found, [Edge(reader.name or "", index) for reader, index in edges])
        node.meta[BORDER] = True
    plan = replace(quantized.plan, sites=tuple(sites.values()))
    return replace(quantized, plan=plan, qparams=numbers)


def beside_border(source: Quantized) -> set[str]:
    """Tensors of which a marked quantizer, which stays, makes or reads all that has their grid."""
    marked = [node for node in all_nodes(source.model) if BORDER in node.meta]
    reading = {Edge(node.name or "", 0) for node in marked if node.op_type == "QuantizeLinear"}
    made = {node.outputs[0].name or "" for node in marked if node.op_type == "DequantizeLinear"}
    return made | {site.tensor for site in source.plan.sites if site.readers and reading.issuperset(site.readers)}


def _add(
    sites: dict[str, Site], numbers: dict[str, QParams], value: ir.Value, found: QParams, edges: Iterable[Edge]
) -> None:
    """A site of a tensor for those of its readers that have none, or their edges at one of the same numbers."""
    tensor = value.name or ""
    others = [site for site in sites.values() if site.tensor == tensor and site.role == "activation"]
    taken = {edge for site in others for edge in site.readers}
    free = tuple(edge for edge in edges if edge not in taken)
    if not free:
        return
    like = next((site for site in others if numbers[site.name] == found), None)
    name, count = tensor, 1
    while like is None and name in sites:
        count += 1
        name = f"{tensor}#{count}"
    site = like or Site(name, tensor, "activation", found.spec, ())
    readers = (*site.readers, *free)
    uses = {Edge(use.node.name or "", use.idx) for use in value.uses()}
    alone = others in ([], [like]) and value.producer() is not None and not value.is_graph_output()
    sites[site.name] = replace(site, readers=readers, produced=alone and uses <= set(readers))
    numbers[site.name] = found
