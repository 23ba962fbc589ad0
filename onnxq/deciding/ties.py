"""Concats that tie tensors of very different sizes to one scale: in one of them, or through what several of them read.

A Concat whose operands share the scale of its result hands that scale on to every other Concat that reads one of them.
So an image that one layer reads with another image may get the scale of a third one's features, a hundred times as
large, and no branch need be lost altogether: the outputs show what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq.calibration.bin_error import Bins
from onnxq.calibration.ranges import select_range
from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.decibels import sqnr_of
from onnxq.plan import Edge, Plan, Site
from onnxq.qparams import QParams
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec, Scheme

__all__ = ["concats_by_tie", "crowded_concats", "own_qparams", "sqnr_with"]

_CROWDED = 12.0
"""dB that a scale of its own would give a tensor more: four times finer steps."""
_NEAR = 0.5
"""Share of a grid that a tensor fills, from which on a scale of its own gives it next to nothing."""


def concats_by_tie(model: ir.Model, plan: Plan) -> dict[str, list[ir.Node]]:
    """Quantized Concats by the site whose scale they give to two tensors or more, in the order of the graph."""
    reads = plan.by_edge("activation")
    found: dict[str, list[ir.Node]] = {}
    for node in all_nodes(model):
        if node.op_type != "Concat" or node.name not in plan.quantized:
            continue
        sites = [site for k in range(len(node.inputs)) if (site := reads.get(Edge(node.name or "", k))) is not None]
        roots = {plan.root(site).name for site in sites}
        if len(roots) == 1 and len({site.name for site in sites}) > 1:
            found.setdefault(roots.pop(), []).append(node)
    return found


def crowded_concats(model: ir.Model, plan: Plan, numbers: Mapping[str, QParams], statistics: Statistics) -> list[str]:
    """Names of the Concats that share a scale with a tensor that is far too small for it.

    Args:
        model: the float model.
        plan: where it is quantized.
        numbers: parameters by site name.
        statistics: of this model.
    """
    ties = concats_by_tie(model, plan)
    members: dict[str, list[Site]] = {root: [] for root in ties}
    for site in plan.sites if ties else ():
        if site.role == "activation" and (root := plan.root(site).name) in members:
            members[root].append(site)
    crowded = [root for root in ties if any(_is_small(site, numbers[root], statistics) for site in members[root])]
    return [node.name or "" for root in crowded for node in ties[root]]


def own_qparams(stats: TensorStatistics, spec: QuantSpec) -> QParams:
    """What a tensor would be quantized with if nothing were tied to it."""
    return from_range(*select_range(stats, spec), spec)


def sqnr_with(stats: TensorStatistics, qparams: QParams) -> float:
    """SQNR in dB of a tensor quantized so; infinite without noise."""
    flat = QParams(qparams.spec, qparams.scale.reshape(1), qparams.zero_point.reshape(1))
    noise = float(np.asarray(Bins(stats).exact(flat)).reshape(-1)[0])
    return sqnr_of(noise, stats.sum_squares)


def _is_small(site: Site, shared: QParams, statistics: Statistics) -> bool:
    stats = statistics.tensors.get(site.source) or statistics.tensors.get(site.tensor)
    if stats is None or not stats.count or not stats.sum_squares or site.spec.scheme is not Scheme.UNIFORM:
        return False
    if stats.max - stats.min > _NEAR * float(shared.scale.max()) * (shared.spec.qmax - shared.spec.qmin):
        return False
    return sqnr_with(stats, own_qparams(stats, site.spec)) - sqnr_with(stats, shared) > _CROWDED
