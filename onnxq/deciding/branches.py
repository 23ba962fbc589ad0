"""Concat branches that one common scale would lose: boxes and scores in one tensor, features a thousand times apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.deciding.ties import concats_by_tie, own_qparams, sqnr_with
from onnxq.graph.traverse import all_nodes
from onnxq.options import Options, Override
from onnxq.plan import Edge, Plan, Site
from onnxq.qparams import QParams
from onnxq.spec import WIDE_OPSET, Scheme

__all__ = ["LostBranch", "lost_branches", "remedy", "with_wide_concats"]

_LOST = 15.0
"""dB that a branch must keep."""
_GAIN = 6.0
"""dB more that a scale of its own would give it."""
_WIDE = 16
"""Bits of a Concat that 8 would not hold."""


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
            f"branch {self.branch!r} of Concat {self.concat!r} keeps {self.sqnr:.0f} dB with one scale for the whole "
            f"tensor, {self.own:.0f} dB with its own"
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
    activations = [site for site in plan.sites if site.role == "activation"]
    sites = {site.tensor: site for site in activations}
    reads = {edge: site for site in activations for edge in site.readers}
    ties = concats_by_tie(model, plan)
    found = []
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
            if stats is None:
                continue
            sqnr = sqnr_with(stats, numbers[site.name])
            own = sqnr_with(stats, own_qparams(stats, site.spec))
            if sqnr < _LOST and own - sqnr > _GAIN:
                others = [n for n in ties.get(plan.root(site).name, []) if n is not node]
                nodes = _too_wide(stats, site, node, others, statistics)
                if not nodes:
                    readers = [e.node for e in site.readers if e.node in plan.quantized]
                    nodes = tuple(dict.fromkeys(n for n in (name, *readers) if n in plan.quantized))
                found.append(LostBranch(name, value.name or "" if value else "", sqnr, own, nodes))
    return found


def with_wide_concats(model: ir.Model, target: Backend, options: Options, lost: Sequence[LostBranch]) -> Options | None:
    """The options with 16-bit Concats where one scale of 8 bits loses a branch; None where that cannot be had.

    Args:
        model: the float model.
        target: the backend.
        options: what the user asked for; a width of activations among it is left as it is.
        lost: the branches.
    """
    if options.act_bits is not None or not _may_differ(target, options):
        return None
    if not target.wide_domain and model.opset_imports.get("", 0) < WIDE_OPSET:
        return None
    named = {pattern for pattern, _ in options.override}
    concats = [f"node:{name}" for name in dict.fromkeys(branch.concat for branch in lost) if name not in named]
    override = (*options.override, *((concat, Override(act_bits=_WIDE)) for concat in concats))
    return replace(options, override=override) if concats else None


def remedy(branch: LostBranch, target: Backend, options: Options) -> str:
    """What a user can do about a branch that is lost."""
    finer = f", --override '{branch.concat}=act_bits=16' gives it finer steps" if _may_differ(target, options) else ""
    return f"--exclude '{branch.concat}' leaves it float{finer}"


def _may_differ(target: Backend, options: Options) -> bool:
    """Whether one tensor may have 16 bits where others have fewer: a table has one entry for all that read one."""
    form = target.format_named(options.format)
    return _WIDE in target.act_bits and target.activation.bits < _WIDE and not form.simulated


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
