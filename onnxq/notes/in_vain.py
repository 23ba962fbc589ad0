"""Overrides of what stays float: asked for, and without effect."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.options import Options, patterns
from onnxq.plan import Plan

__all__ = ["in_vain"]


def in_vain(model: ir.Model, plan: Plan, options: Options) -> Iterator[str]:
    """Warnings of a result, as sentences: overrides that name nothing but what stays float.

    Args:
        model: the float model that was planned.
        plan: where it is quantized.
        options: as the user gave them.
    """
    asked = [pattern for pattern, change in options.override if not change.float]
    if not asked:
        return
    reached = {edge.node for site in plan.sites for edge in site.readers} | {*plan.quantized, *plan.stored}
    tensors = {site.tensor for site in plan.sites}
    for match in patterns.match(asked, patterns.names_of(model), option="override"):
        writers = {node.name or "" for node in model.graph.all_nodes() if match.node(node)}
        if reached.isdisjoint({*match.nodes, *writers}) and tensors.isdisjoint(match.tensors):
            yield f"the override of '{match.pattern}' has no effect: what it names stays float"
