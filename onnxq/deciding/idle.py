"""Bodies of If and Loop that no sample of the calibration data ran: what is in them has no numbers."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxq.calibration.statistics import TensorStatistics
from onnxq.graph.traverse import all_nodes, describe, with_subgraphs

__all__ = ["idle_bodies"]


def idle_bodies(model: ir.Model, tensors: Mapping[str, TensorStatistics]) -> dict[str, str]:
    """Tensors of bodies in which nothing that was looked for was ever computed, with the reason; outer bodies count.

    Args:
        model: names are unique.
        tensors: name → what was seen of it.
    """
    found: dict[str, str] = {}
    for node in all_nodes(model):  # an outer graph before those inside
        for name, attribute in node.attributes.items():
            if attribute.type is not ir.AttributeType.GRAPH or attribute.is_ref():
                continue
            graphs = with_subgraphs(attribute.as_graph())
            inside = [value.name or "" for graph in graphs for inner in graph for value in inner.outputs]
            seen = [tensors[tensor] for tensor in inside if tensor in tensors]
            if seen and not any(tensor.elements for tensor in seen):
                reason = f"the {name} of {describe(node)} never ran on the calibration data"
                found |= {tensor: reason for tensor in inside if tensor not in found}
    return found
