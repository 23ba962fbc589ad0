"""Mask values in front of a softmax (-1e4, -65504) stay out of integers: one grid for them and the scores loses these.

Statistics leave out what is infinite or beyond 1e30. A mask may be milder: values crowd together far from all others.
Nodes that read or write such a tensor stay float. Only tensors that a Softmax sees are looked at, since large numbers
elsewhere are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.algorithms.draft import FloatDraft
from onnxq.algorithms.trial import keep_what_helps
from onnxq.calibration.statistics import TensorStatistics
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan

__all__ = ["NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "mask_value", "masked_tensors"]

NAME = "outliers"
TITLE = "keep mask values in front of a softmax out of integers"
STAGE = "float"
PARAMETERS: Mapping[str, object] = {}

_THROUGH = frozenset(
    {"Add", "Cast", "Div", "Expand", "Identity", "Mul", "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"}
)
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_CROWD = 1.5
"""Largest over smallest of the values that stand for "masked", the scores added to them included."""
_LEAST = 50.0
"""Smallest magnitude of a mask value: e**-50 is nothing beside 1."""
_FAR = 16.0
"""Their magnitude over that of all other values, at least."""


@dataclass(frozen=True, slots=True)
class _Floating:
    """Nodes that are to stay float, with the reasons."""

    reasons: Mapping[str, str]

    def apply(self, draft: FloatDraft) -> list[str]:
        draft.keep_float.update(self.reasons)
        return []


def apply(draft: FloatDraft) -> None:
    """Keep nodes float that would quantize masks together with scores, if that helps on samples held back.

    Args:
        draft: its ``keep_float`` is changed.
    """
    masked = masked_tensors(draft.model, draft.statistics.tensors)
    reasons = _touching(draft.model, draft.plan(), masked)
    if not reasons:
        draft.notes.append(f"{NAME}: no mask values among what is quantized")
        return
    outcome = keep_what_helps(draft, [_Floating(reasons)])
    done = "stay float" if outcome.kept else "stay as they are, no gain on samples held back"
    draft.notes.append(
        f"{NAME}: {len(reasons)} nodes that touch mask values {done}, "
        f"outputs {outcome.before:.2f} dB to {outcome.after:.2f} dB"
    )


def masked_tensors(model: ir.Model, statistics: Mapping[str, TensorStatistics]) -> dict[str, float]:
    """The tensors in front of a softmax that hold mask values.

    Args:
        model: left unchanged.
        statistics: by tensor name.

    Returns:
        Tensor name → the mask value farthest from zero.
    """
    found: dict[str, float] = {}
    seen: set[ir.Value] = set()
    stack = [node.inputs[0] for node in all_nodes(model) if node.op_type in _SOFTMAX]
    while stack:
        value = stack.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        stats = statistics.get(value.name or "")
        if stats is not None and (mask := mask_value(stats)) is not None:
            found[value.name or ""] = mask
        producer = value.producer()
        if producer is not None and producer.op_type in _THROUGH:
            stack += list(producer.inputs)
    return found


def mask_value(stats: TensorStatistics) -> float | None:
    """The lowest value of a tensor if it stands for "masked": far below zero, and nothing between it and the others."""
    if not stats.count or stats.min > -_LEAST:
        return None
    lower, upper, _ = stats.edges()
    others = upper > stats.min / _CROWD
    if not others.any():
        return None
    rest = float(max(np.abs(lower[others]).max(), np.abs(upper[others]).max()))
    return stats.min if -stats.min / _CROWD >= _FAR * rest else None


def _touching(model: ir.Model, plan: Plan, masked: Mapping[str, float]) -> dict[str, str]:
    """Quantized nodes that read or write a masked tensor → reason to keep them float."""
    reasons: dict[str, str] = {}
    for node in all_nodes(model):
        name = node.name or ""
        if name not in plan.quantized and name not in plan.absorbed:
            continue
        for value in (*node.inputs, *node.outputs):
            tensor = value.name if value is not None else None
            if tensor is not None and tensor in masked:
                why = f"tensor {tensor!r} holds mask values ({masked[tensor]:g}) among its numbers"
                reasons.setdefault(plan.absorbed.get(name, name), why)
    return reasons
