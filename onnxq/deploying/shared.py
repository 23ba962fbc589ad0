"""Numbers given that meet in a tensor without any, tied to all of them: what a Concat joins, a pool passes on."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.plan import Edge, Plan, Site
from onnxq.qparams import QParams
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec, Scheme

__all__ = ["averages", "same_grid", "share_grids", "without_torn_ties"]

_ROUNDED = 0.5
"""Steps by which a grid may end before another and still hold it."""


def share_grids(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Give tied sites that one operator hands on to the next, and whose numbers differ, one grid that holds all, where
    one of the tie has no numbers of its own. Where all have, they keep them.

    What only operators of the tie read need not be held beyond the range of their output, where that has numbers: it
    clips there. All else is held, what is averaged too, whose mean ends long before it: a grid that ends before would
    cut off what the model given does not. Of the grids that hold all it is that of the tie's root, then the first in
    the order of the graph; where none does, one over the ranges of all.

    Args:
        model: the model of the plan.
        plan: where it is quantized.
        numbers: site name → its grid; changed in place. Sites without numbers get none here.

    Returns:
        The tensors whose grid has changed.
    """
    steps, outputs = _steps(model, plan, numbers), _outputs(model)
    clipping = _clipping(steps, numbers, outputs)
    changed: list[str] = []
    for members in _met(plan, steps, numbers):
        grids = [numbers[site.name] for site in members]
        if all(same_grid(grids[0], grid) for grid in grids) or not _comparable(grids):
            continue
        root = plan.root(members[0])
        if root in members:
            ends = [site for site in members if site is not root and _is_end(site, clipping, outputs)]
            grids = [numbers[site.name] for site in (root, *ends)]
        one = _holding(grids, replace(root.spec, bits=grids[0].spec.bits))
        changed += [site.tensor for site in members if not same_grid(numbers[site.name], one)]
        numbers.update({site.name: one for site in members})
    return changed


def without_torn_ties(plan: Plan, numbers: Mapping[str, QParams]) -> Plan:
    """The plan without ties to a site of other numbers, or of none."""

    def keeps(site: Site) -> bool:
        one, other = numbers.get(site.name), numbers.get(site.tied_to or "")
        return one is not None and other is not None and same_grid(one, other)

    sites = (site if site.tied_to is None or keeps(site) else replace(site, tied_to=None) for site in plan.sites)
    return replace(plan, sites=tuple(sites))


def same_grid(one: QParams, other: QParams) -> bool:
    """Whether two sites may share their numbers: one scale, zero point and width."""
    alike = np.array_equal(one.scale, other.scale) and np.array_equal(one.zero_point, other.zero_point)
    return alike and one.spec.bits == other.spec.bits


def averages(node: ir.Node) -> bool:
    """Whether an operator gives means of what it reads, as between two elements: their range says nothing of that."""
    if node.domain == "" and node.op_type in ("Resize", "Upsample"):
        return node.attributes.get_string("mode", "nearest") != "nearest"
    return node.domain == "" and node.op_type in ("AveragePool", "GlobalAveragePool", "ReduceMean")


class _Step(NamedTuple):
    """An operator that hands numbers on.

    Attributes:
        node: the operator.
        read: sites that it reads and that have numbers, their own or handed on to them.
        made: sites that it writes, it or a function absorbed into it, each tied to one of those.
    """

    node: ir.Node
    read: list[Site]
    made: list[Site]


def _steps(model: ir.Model, plan: Plan, numbers: Iterable[str]) -> list[_Step]:
    """What hands numbers on, in the order of the graph.

    An operator that reads no site with numbers, its own or handed on to it, stays float: what several such make of one
    tensor does not meet.
    """
    reads, written = plan.by_edge("activation", "constant"), _written(model, plan)
    known = set(numbers)
    found: list[_Step] = []
    for node in all_nodes(model):
        name = node.name or ""
        read = [s for k in range(len(node.inputs)) if (s := reads.get(Edge(name, k))) is not None and s.name in known]
        roots = {plan.root(site).name for site in read}
        made = [site for site in written.get(name, ()) if plan.root(site).name in roots]
        if made:
            found.append(_Step(node, read, made))
            known.update(site.name for site in made)
    return found


def _written(model: ir.Model, plan: Plan) -> dict[str, list[Site]]:
    """Operator → the activations that it writes, it or a function absorbed into it."""
    sites: dict[str, list[Site]] = {}
    for site in plan.sites:
        if site.role == "activation":
            sites.setdefault(site.tensor, []).append(site)
    found: dict[str, list[Site]] = {}
    for node in all_nodes(model):
        into = plan.absorbed.get(node.name or "", node.name or "")
        for value in node.outputs:
            found.setdefault(into, []).extend(sites.get(value.name or "", ()))
    return found


def _met(plan: Plan, steps: Iterable[_Step], numbers: Container[str]) -> list[list[Site]]:
    """Sites with numbers, two or more that meet in operators and are tied to one without."""
    group_of: dict[str, list[Site]] = {}
    for step in steps:
        root = plan.root(step.made[0])
        meeting = [group_of.setdefault(s.name, [s]) for s in (*step.read, *step.made) if plan.root(s) is root]
        merged = list({site.name: site for group in meeting for site in group}.values())
        group_of.update({site.name: merged for site in merged})
    order = {site.name: k for k, site in enumerate(plan.sites)}
    distinct = {id(group): sorted(group, key=lambda s: order[s.name]) for group in group_of.values()}
    open_ones = (group for group in distinct.values() if any(site.name not in numbers for site in group))
    found = [[site for site in group if site.name in numbers] for group in open_ones]
    return [group for group in found if len(group) > 1]


def _outputs(model: ir.Model) -> set[str | None]:
    """What the model gives, and its branches and bodies."""
    return {value.name for graph in all_graphs(model) for value in graph.outputs}


def _clipping(steps: Sequence[_Step], numbers: Container[str], outputs: Container[str | None]) -> set[str]:
    """Names of operators that clip what they hand on, themselves or by what reads it: averages do not."""
    found: set[str] = set()
    for node, _, made in reversed(steps):
        if not averages(node) and all(s.name in numbers or not _is_end(s, found, outputs) for s in made):
            found.add(node.name or "")
    return found


def _is_end(site: Site, clipping: Container[str], outputs: Container[str | None]) -> bool:
    """Whether something reads a site that does not clip it within its tie, or nothing does."""
    return site.tensor in outputs or not site.readers or any(edge.node not in clipping for edge in site.readers)


def _comparable(grids: Sequence[QParams]) -> bool:
    """Whether one grid can take the place of all: uniform, of one width, one scale for a whole tensor."""
    return len({g.spec.bits for g in grids}) == 1 and all(
        g.spec.scheme is Scheme.UNIFORM and not g.scale.ndim for g in grids
    )


def _holding(grids: Sequence[QParams], spec: QuantSpec) -> QParams:
    """The first of some grids that holds them all, else one of a spec over the ranges of all."""
    low, high = min(float(g.lo) for g in grids), max(float(g.hi) for g in grids)
    for grid in grids:
        room = _ROUNDED * float(grid.scale)
        if float(grid.lo) - room <= low and float(grid.hi) + room >= high:
            return grid
    return from_range(low, high, spec)
