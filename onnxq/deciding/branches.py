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
from onnxq.plan import Edge, Plan
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
            stats = statistics.tensors.get(value.name or "") if value is not None else None
            if stats is None or not stats.count or not stats.sum_squares:
                continue
            sqnr = _sqnr(stats, numbers[site.name])
            own = _sqnr(stats, from_range(*select_range(stats, site.spec), site.spec))
            if sqnr < _LOST and own - sqnr > _GAIN:
                readers = [e.node for e in site.readers if e.node in plan.quantized]
                nodes = tuple(dict.fromkeys(n for n in (name, *readers) if n in plan.quantized))
                found.append(LostBranch(name, value.name or "" if value else "", sqnr, own, nodes))
    return found


def _sqnr(stats: TensorStatistics, qparams: QParams) -> float:
    flat = QParams(qparams.spec, qparams.scale.reshape(1), qparams.zero_point.reshape(1))
    noise = float(np.asarray(Bins(stats).exact(flat)).reshape(-1)[0])
    return 10 * math.log10(stats.sum_squares / noise) if noise > 0 else math.inf
