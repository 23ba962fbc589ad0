"""Bias absorption: what a channel always has passes through a Relu into the next layer's bias.

``W2 relu(x + b1) + b2 = W2 relu(x + b1 - c) + W2 c + b2`` wherever ``x + b1 >= c >= 0`` (Nagel et al., Data-Free
Quantization Through Weight Equalization and Bias Correction, 2019, section 4.1.3). The activation's range shrinks by c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.channels.pairs import LayerPair, find_pairs, pair_at
from onnxq.calibration.capture import capture
from onnxq.calibration.moved import Move
from onnxq.graph.layer import Channels, Refusal, replace_constant

__all__ = ["Absorption", "absorptions"]

_DEVIATIONS = 3.0
_LEAST = 0.02
"""Smallest share of the largest value of the tensor that is worth it."""


@dataclass(frozen=True, slots=True, eq=False)
class Absorption:
    """Shifts of one pair's channels.

    Attributes:
        pair: its name.
        shift: (C,) float64, what the tensor between is lowered by.
    """

    pair: str
    shift: Channels

    def apply(self, draft: FloatDraft) -> dict[str, Move]:
        """Move the shift from one bias to the next."""
        lookup = draft.lookup()
        namer, pair = lookup.namer, pair_at(lookup.nodes[self.pair])
        first, second = pair.first, pair.second
        bias = first.bias_array()
        lowered = -self.shift if bias is None else (bias - self.shift).reshape(bias.shape)
        if first.add is not None:
            replace_constant(first.add, int(first.add.inputs[1] is first.bias), lowered, namer, "bias", _FLOAT)
        else:
            replace_constant(first.node, 2, lowered, namer, f"{first.node.name}_bias", _FLOAT)
        raised = second.response(self.shift)
        behind = second.bias_array()
        raised = raised if behind is None else behind + raised
        replace_constant(second.node, 2, raised, namer, f"{second.node.name}_bias", _FLOAT)
        made, relu = (value.name or "" for value in pair.path)
        ends = ((made, -math.inf), (relu, 0.0))
        return {name: Move(name, shift=self.shift, least=least) for name, least in ends}


_FLOAT = ir.DataType.FLOAT


def absorptions(draft: FloatDraft) -> tuple[list[Absorption], list[int]]:
    """What could be absorbed, pair by pair, and the number of channels of each."""
    pairs = [p for p in find_pairs(draft.model)[0] if _suits(p)]
    lows = _lows(draft, {p.path[0].name or "": (1 if p.first.is_conv else -1) for p in pairs})
    found = []
    for pair in pairs:
        known = lows.get(pair.path[0].name or "")
        if known is None or known[0].size != pair.first.out_channels():
            continue
        low, peak = known
        shift = np.where(low >= _LEAST * peak, np.maximum(low, 0.0), 0.0)
        if shift.any():
            found.append(Absorption(pair.name, shift))
    return found, [int(np.count_nonzero(a.shift)) for a in found]


def _suits(pair: LayerPair) -> bool:
    if pair.operators != ("Relu",) or pair.second.node.op_type not in ("Conv", "Gemm"):
        return False
    if pair.first.node.op_type not in ("Conv", "Gemm") and pair.first.add is None:
        return False
    node = pair.second.node
    if node.op_type == "Conv":
        auto = node.attributes.get_string("auto_pad", "NOTSET")
        pads = node.attributes.get_ints("pads", None) or ()
        if any(pads) or auto.startswith("SAME"):
            return False
    try:
        pair.second.response(np.zeros(pair.second.in_channels()))
    except Refusal:
        return False
    return pair.second.bias is None or len(pair.second.bias.uses()) == 1


def _lows(draft: FloatDraft, axes: Mapping[str, int]) -> dict[str, tuple[Channels, float]]:
    """Tensor → min(mean - 3 std, min) of each channel on all kept samples, and the largest value of all."""
    found: dict[str, tuple[Channels, float]] = {}
    samples = draft.statistics.kept
    for names, arrays in capture(draft.model, list(axes), samples, options=draft.options, sizes=draft.sizes()):
        sums: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
        for sample in arrays:
            for name in names:
                array = np.moveaxis(sample[name], axes[name], 0).astype(np.float64)
                rows = array.reshape(array.shape[0], -1)
                if rows.size:
                    sums[name].append(np.stack([rows.mean(1), (rows**2).mean(1), rows.min(1), rows.max(1)]))
        for name, parts in sums.items():
            if not parts or len({part.shape for part in parts}) != 1:
                continue
            every = np.stack(parts)
            mean, square = every[:, 0].mean(axis=0), every[:, 1].mean(axis=0)
            low = mean - _DEVIATIONS * np.sqrt(np.maximum(square - mean**2, 0.0))
            found[name] = (np.minimum(low, every[:, 2].min(axis=0)), float(every[:, 3].max()))
    return found
