"""Mask values in front of a softmax (-1e4, -65504) stay out of integers: room for them on a grid takes it from scores.

Nodes that read or write such a tensor stay float, see :mod:`onnxq.calibration.masks`, where the user or the target
wants all quantized as well. Without this, grids reach as far below the scores as masks need to mask, and no farther.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.common.keep_what_helps import keep_what_helps
from onnxq.calibration.masks import find_masks
from onnxq.calibration.moved import Move
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply"]

NAME = "outliers"
TITLE = "keep the mask values before a softmax out of integers"
STAGE = "float"
PARAMETERS: Mapping[str, object] = {}
HELP: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class _Floating:
    """Nodes that are to stay float, with the reasons."""

    reasons: Mapping[str, str]

    def apply(self, draft: FloatDraft) -> dict[str, Move]:
        draft.keep_float.update(self.reasons)
        return {}


def apply(draft: FloatDraft) -> None:
    """Keep nodes float that would quantize masks together with scores, if that helps on samples held back.

    Args:
        draft: its ``keep_float`` is changed.
    """
    masked = find_masks(draft.model, draft.statistics.tensors).seen
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


def _touching(model: ir.Model, plan: Plan, masked: Mapping[str, str]) -> dict[str, str]:
    """Quantized nodes that read or write a masked tensor → reason to keep them float."""
    reasons: dict[str, str] = {}
    for node in all_nodes(model):
        name = node.name or ""
        if not plan.in_integers(name):
            continue
        for value in (*node.inputs, *node.outputs):
            tensor = value.name if value is not None else None
            if tensor is not None and tensor in masked:
                reasons.setdefault(plan.absorbed.get(name, name), masked[tensor])
    return reasons
