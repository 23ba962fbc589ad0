"""Weights that are stored as integers for the file's size alone, and would be too coarse for what their layer reads.

A weight of a layer on numbers in their own units, a table's columns say, undoes the units: its largest entries stand
for the smallest inputs, and one scale for all that an output sums up leaves nothing of the others. That takes no run of
the model to see: statistics hold what such layers read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.measuring.decibels import sqnr_of
from onnxq.plan import Edge, Plan
from onnxq.qparams import QParams, fake_quantize

__all__ = ["coarse_weights"]

_LEAST, _BITS, _BIT = 25.0, 8, 5.0
"""dB that a weight of so many bits must leave of its layer's output, and how many less for each bit less. Ordinary ones
of 8 bits leave 40 to 50, those of 4 bits 15 to 25."""


def coarse_weights(
    model: ir.Model, plan: Plan, numbers: Mapping[str, QParams], samples: Sequence[KeptSample]
) -> dict[str, str]:
    """Gemms that are computed in float, and that the integers their weights are stored as would spoil.

    Args:
        model: the float model.
        plan: where weights are stored.
        numbers: parameters by site name.
        samples: kept samples with the channel means of what Gemms read.

    Returns:
        Node name → reason to keep the weight as it is.
    """
    weights = plan.by_edge("weight")
    found: dict[str, str] = {}
    for node in all_nodes(model):
        site = weights.get(Edge(node.name or "", 1))
        qp = numbers.get(site.name) if site is not None else None
        if node.op_type != "Gemm" or node.name not in plan.stored or qp is None:
            continue
        data, weight = node.inputs[0], constant_array(node.inputs[1])
        rows = [s.means[data.name] for s in samples if data is not None and data.name in s.means]
        if weight is None or not rows:
            continue
        error = fake_quantize(weight, qp) - weight
        turned = node.attributes.get_int("transB", 0) == 1
        signal, noise = (_power(np.array(rows) @ (matrix.T if turned else matrix)) for matrix in (weight, error))
        left = sqnr_of(noise, signal) if signal > 0 else math.inf
        if left < _LEAST - _BIT * (_BITS - qp.spec.bits):
            why = f"{qp.spec.bits}-bit weights would leave {left:.0f} dB of its output"
            found[node.name or ""] = f"{why}: the values it reads differ widely in size"
    return found


def _power(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Of what differs from sample to sample, where there are some."""
    centred = values - values.mean(axis=0) if len(values) > 1 else values
    return float(np.square(centred).sum())
