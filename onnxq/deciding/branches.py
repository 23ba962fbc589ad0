"""Concat branches that one common scale would lose: boxes and scores in one tensor, features a thousand times apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.console.terminal import decibels, listed
from onnxq.deciding.ties import concats_by_tie, own_qparams, sqnr_with
from onnxq.deciding.wide_activations import has_wide, some_wide
from onnxq.graph.traverse import all_nodes
from onnxq.options import Options
from onnxq.plan import Edge, Plan, Site
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.spec import Scheme

__all__ = ["LostBranch", "lost_branches", "said_of", "to_keep_float", "told", "with_wide_concats"]

_LOST = 15.0
"""dB that a branch must keep."""
_GAIN = 6.0
"""dB more that a scale of its own would give it."""

_NAMED = 3
"""Branches of a Concat that a warning names."""
_PLAIN = frozenset({"Add", "Concat", "Mul", "Sub"})
"""Arithmetic that any processor computes alike."""
_BEHIND = "what it reads stays float from Concat {!r} on"


@dataclass(frozen=True, slots=True)
class LostBranch:
    """A branch of a Concat that the scale of the whole tensor does not hold.

    Attributes:
        concat: the Concat.
        branch: the tensor that suffers.
        sqnr: of the branch with the common scale, dB.
        own: of the branch with a scale of its own, dB.
        nodes: quantized nodes to keep float for its sake: the Concat, and what reads it with one scale; or where it is
            other Concats that make this scale too large, those.
    """

    concat: str
    branch: str
    sqnr: float
    own: float
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"branch {self.branch!r} of Concat {self.concat!r} keeps {decibels(self.sqnr)} with one scale for the "
            f"whole tensor, {decibels(self.own)} with its own"
        )


def lost_branches(
    model: ir.Model, plan: Plan, numbers: Mapping[str, QParams], statistics: Statistics
) -> list[LostBranch]:
    """Branches of quantized Concats, and of float ones whose result is quantized, that one scale would lose.

    The scale is that of the Concat's result, or where a target quantizes what a layer reads, the one of its inputs.

    Args:
        model: the float model.
        plan: where it is quantized.
        numbers: parameters by site name.
        statistics: of this model.
    """
    ties = concats_by_tie(model, plan)
    found = []
    for node, value, site, stats in _branches(model, plan, statistics):
        sqnr = sqnr_with(stats, numbers[site.name])
        own = sqnr_with(stats, own_qparams(stats, site.spec))
        if sqnr < _LOST and own - sqnr > _GAIN:
            others = [n for n in ties.get(plan.root(site).name, []) if n is not node]
            nodes = _too_wide(stats, site, node, others, statistics)
            if not nodes:
                names = (node.name or "", *(edge.node for edge in site.readers))
                nodes = tuple(dict.fromkeys(name for name in names if name in plan.quantized))
            found.append(LostBranch(node.name or "", value.name or "" if value else "", sqnr, own, nodes))
    return found


def _branches(
    model: ir.Model, plan: Plan, statistics: Statistics
) -> Iterator[tuple[ir.Node, ir.Value | None, Site, TensorStatistics]]:
    """Branches of Concats with the sites that hold them, of their result or one of their own, and their statistics."""
    sites = {site.tensor: site for site in plan.sites if site.role == "activation"}
    reads = plan.by_edge("activation")
    for node in all_nodes(model):
        if node.op_type != "Concat":
            continue
        name = node.name or ""
        whole = sites.get(node.outputs[0].name or "")
        for index, value in enumerate(node.inputs):
            site = whole or (reads.get(Edge(name, index)) if name in plan.quantized else None)
            if site is None or site.spec.scheme is Scheme.FLOAT8:  # which holds small numbers beside large ones
                continue
            stats = _seen(value, statistics)
            if stats is not None:
                yield node, value, site, stats


def to_keep_float(model: ir.Model, plan: Plan, target: Backend, lost: Sequence[LostBranch]) -> dict[str, str]:
    """Nodes to keep float for the sake of branches that one scale loses, with the reasons.

    Where the target mixes, the Concat or what reads it. Where float nodes may only end the model, all that come behind
    as well, if these only move numbers or add and multiply them: other functions a target may compute in its own way.

    Args:
        model: the float model.
        plan: where it is quantized.
        target: the backend.
        lost: the branches.
    """
    found: dict[str, str] = {}
    for branch in lost:
        if target.mixes:
            found.update(dict.fromkeys(branch.nodes, str(branch)))
        elif target.float_tails:
            tail = _tail(model, plan, target, branch)
            for name in tail if all(op in _PLAIN or kind is Kind.MOVEMENT for op, kind in tail.values()) else ():
                found.setdefault(name, str(branch) if name in branch.nodes else _BEHIND.format(branch.concat))
    return found


def with_wide_concats(model: ir.Model, target: Backend, options: Options, lost: Sequence[LostBranch]) -> Options | None:
    """The options with 16-bit Concats where one scale of 8 bits loses a branch; None where that cannot be had.

    Args:
        model: the float model.
        target: the backend.
        options: what the user asked for; a width of activations among it is left as it is.
        lost: the branches.
    """
    return some_wide(model, target, options, (branch.concat for branch in lost))


def told(model: ir.Model, plan: Plan, target: Backend, lost: Sequence[LostBranch]) -> Iterator[str]:
    """Warnings of branches that are lost, with what a user can do: one for all of a Concat.

    Args:
        model: the float model.
        plan: where it is quantized.
        target: the backend.
        lost: the branches.
    """
    by_remedy: dict[str, list[LostBranch]] = {}
    for branch in lost:
        by_remedy.setdefault(_remedy(model, plan, target, branch), []).append(branch)
    for remedy, branches in by_remedy.items():
        yield from (f"{text}: {remedy}" for text in said_of(branches).values())


def said_of(lost: Iterable[LostBranch]) -> dict[str, str]:
    """Concat → what its branches lose, as a sentence."""
    by_concat: dict[str, list[LostBranch]] = {}
    for branch in lost:
        by_concat.setdefault(branch.concat, []).append(branch)
    return {name: str(all_[0]) if len(all_) == 1 else _all_of(all_) for name, all_ in by_concat.items()}


def _all_of(branches: Sequence[LostBranch]) -> str:
    names = listed([repr(branch.branch) for branch in branches], _NAMED)
    kept, own = (_between([b.sqnr for b in branches]), _between([b.own for b in branches]))
    return (
        f"branches {names} of Concat {branches[0].concat!r} keep {kept} with one scale for the whole tensor, "
        f"{own} with their own"
    )


def _between(levels: Sequence[float]) -> str:
    low, high = decibels(min(levels)), decibels(max(levels))
    return low if low == high else f"{low} to {high}"


def _remedy(model: ir.Model, plan: Plan, target: Backend, branch: LostBranch) -> str:
    """What a user can do about a branch that is lost."""
    if target.all_integers:
        if not _tail(model, plan, target, branch):
            return f"{target.name} has one scale for all that a Concat joins"
        return (
            f"{target.name} has one scale for all that it joins; cut the model in front of it, so that these are "
            "outputs of their own (onnx.utils.extract_model)"
        )
    finer = f", --override '{branch.concat}=act_bits=16' gives it finer steps" if has_wide(target) else ""
    return f"--exclude '{branch.concat}' leaves it float{finer}"


def _tail(model: ir.Model, plan: Plan, target: Backend, branch: LostBranch) -> dict[str, tuple[str, Kind]]:
    """The nodes of a branch and all that in integers comes behind them, with their operators and kinds; none where a
    multiply-accumulate does."""
    nodes = [node for node in all_nodes(model) if node.name in branch.nodes]
    seen = set(nodes)
    for node in nodes:  # grows
        behind = dict.fromkeys(use.node for value in node.outputs for use in value.uses())
        nodes += [reader for reader in behind if reader not in seen]
        seen.update(behind)
    found: dict[str, tuple[str, Kind]] = {}
    for node in nodes:
        rule = row(target, node) if plan.in_integers(node.name) else None
        if rule is not None and node.name:
            found[node.name] = node.op_type, rule.kind
    return {} if {kind for _, kind in found.values()} & {Kind.COMPUTE, Kind.PRODUCT} else found


def _too_wide(
    stats: TensorStatistics, site: Site, node: ir.Node, others: list[ir.Node], statistics: Statistics
) -> tuple[str, ...]:
    """Other Concats of a tie that lose a branch of this one, where the result of this one alone would not."""

    def loses(concat: ir.Node) -> bool:
        whole = _seen(concat.outputs[0], statistics)
        return whole is not None and sqnr_with(stats, own_qparams(whole, site.spec)) < _LOST

    return () if not others or loses(node) else tuple(other.name or "" for other in others if loses(other))


def _seen(value: ir.Value | None, statistics: Statistics) -> TensorStatistics | None:
    """What was seen of a tensor that is not all zeros."""
    stats = statistics.tensors.get(value.name or "") if value is not None else None
    return stats if stats is not None and stats.count and stats.sum_squares else None
