"""Which nodes a plan is told to keep in float."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq.plan import Plan

__all__ = ["InFloat", "nodes_touching"]


@dataclass(frozen=True, slots=True)
class InFloat:
    """The nodes that a plan is to keep in float, and what becomes of their weights.

    Attributes:
        reasons: node name → why it stays float.
        stored: nodes among them whose weights are stored as integers all the same, to be unpacked when the model loads.
        wide: float layers whose weights take 16 bits where they are stored, in place of 8.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()

    def plus(self, reasons: Mapping[str, str], *, store: bool = False) -> InFloat:
        """With more nodes in float; ``store``: their weights as integers."""
        stored = self.stored.union(reasons if store else ())
        return replace(self, reasons={**self.reasons, **reasons}, stored=stored)

    def plus_wide(self, nodes: Iterable[str]) -> InFloat:
        """With more weights that take 16 bits where they are stored."""
        return replace(self, wide=self.wide.union(nodes))


def nodes_touching(model: ir.Model, plan: Plan, bad: Mapping[str, str]) -> dict[str, str]:
    """Quantized nodes that read or write an unusable tensor, with the reason."""
    if not bad:
        return {}
    bad = {**bad, **{site.tensor: bad[site.source] for site in plan.sites if site.source in bad}}
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        if plan.in_integers(node.name) or node.name in plan.stored:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name in bad and node.name:
                    found.setdefault(plan.absorbed.get(node.name, node.name), bad[value.name])
    return found
