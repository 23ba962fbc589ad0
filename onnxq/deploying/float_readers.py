"""What stays float reads a tensor quantized where it does in the model given, and others read it so anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from onnxq.plan import Edge, Plan, Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized

__all__ = ["with_float_readers"]


def with_float_readers(source: Quantized, plan: Plan, numbers: Mapping[str, QParams]) -> Plan:
    """The plan with the operators that stay float among the readers of a quantized tensor, as in the model given.

    Training sees the quantized tensor on both ways of a residual, and in both factors of ``x * sigmoid(x)``: an
    artifact in which one of them reads it unquantized computes something else. The quantizer is there for the other
    reader. Where the grid is not the one given, and where nothing else reads it, the operator reads the tensor as it
    is.

    Args:
        source: the model given, in the target's form.
        plan: the target's, its sites those with numbers.
        numbers: of the plan's sites.
    """
    taken = set(plan.by_edge())
    stays = {kept.node for kept in plan.kept_float} - plan.absorbed.keys()
    given: dict[str, list[Site]] = {}
    for site in source.plan.sites:
        if site.role == "activation":
            given.setdefault(site.tensor, []).append(site)

    def more(site: Site) -> tuple[Edge, ...]:
        same = (g for g in given.get(site.tensor, ()) if _same_numbers(source.qparams[g.name], numbers[site.name]))
        edges = (edge for g in same for edge in g.readers if edge.node in stays and edge not in taken)
        return tuple(dict.fromkeys(edges))

    def widened(site: Site) -> Site:
        if site.role != "activation" or site.produced or not site.readers:
            return site
        found = more(site)
        taken.update(found)
        return replace(site, readers=(*site.readers, *found))

    return replace(plan, sites=tuple(widened(site) for site in plan.sites))


def _same_numbers(one: QParams, other: QParams) -> bool:
    """Whether two grids hold the same real numbers, whatever the integers that stand for them."""
    if one.spec.bits != other.spec.bits or one.spec.scheme is not other.spec.scheme:
        return False
    return all(np.array_equal(a, b) for a, b in ((one.scale, other.scale), (one.lo, other.lo), (one.hi, other.hi)))
