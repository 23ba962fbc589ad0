"""Concat branches that one common scale would lose: boxes and scores in one tensor, features a thousand times apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.calibration.bin_error import Bins
from onnxq.calibration.ranges import select_range
from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.qparams import QParams, from_range
from onnxq.spec import Scheme

__all__ = ["LostBranch", "lost_branches"]

_LOST = 15.0
"""dB that a branch must keep."""
_GAIN = 6.0
"""dB more that a scale of its own would give it."""


@dataclass(frozen=True, slots=True)
class LostBranch:
    """A branch of a Concat that the scale of the whole tensor does not hold.

    Attributes:
        concat: the Concat.
        branch: the tensor that suffers.
        sqnr: of the branch with the common scale, dB.
        own: of the branch with a scale of its own, dB.
        nodes: quantized nodes to keep float for its sake: the Concat, and what reads it with one scale.
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

    Args:
        model: the float model.
        plan: where it is quantized.
        numbers: parameters by site name.
        statistics: of this model.
    """
    sites = {site.tensor: site for site in plan.sites if site.role == "activation"}
    found = []
    for node in all_nodes(model):
        site = sites.get(node.outputs[0].name or "") if node.op_type == "Concat" else None
        if site is None or site.spec.scheme is Scheme.FLOAT8:  # which holds small numbers beside large ones
            continue
        common = numbers[site.name]
        for value in node.inputs:
            stats = statistics.tensors.get(value.name or "") if value is not None else None
            if stats is None or not stats.count or not stats.sum_squares:
                continue
            sqnr = _sqnr(stats, common)
            own = _sqnr(stats, from_range(*select_range(stats, site.spec), site.spec))
            if sqnr < _LOST and own - sqnr > _GAIN:
                readers = [e.node for e in site.readers if e.node in plan.quantized]
                nodes = tuple(dict.fromkeys(n for n in (node.name or "", *readers) if n in plan.quantized))
                found.append(LostBranch(node.name or "", value.name or "" if value else "", sqnr, own, nodes))
    return found


def _sqnr(stats: TensorStatistics, qparams: QParams) -> float:
    flat = QParams(qparams.spec, qparams.scale.reshape(1), qparams.zero_point.reshape(1))
    noise = float(np.asarray(Bins(stats).exact(flat)).reshape(-1)[0])
    return 10 * math.log10(stats.sum_squares / noise) if noise > 0 else math.inf
