"""Masks in front of a softmax, found as post-training quantization finds them: in the examples, or in the graph alone.

A grid that holds a mask of -3.4e38 beside the scores has one number for all of these. An example without padding does
not show the mask, or shows zeros; what it is where there is padding stands in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import torch

from onnxq.calibration.masks import find_masks
from onnxq.calibration.statistics import TensorStatistics
from onnxq.graph.recognition.masks import LEAST

__all__ = ["masked_tensors", "no_grid", "telling"]


def telling(name: str, x: torch.Tensor) -> TensorStatistics | None:
    """Statistics of a tensor that may hold masks: that has large numbers, or is zero throughout.

    Args:
        name: of it.
        x: float32, not in a gradient's graph.
    """
    low, high = (float(end) for end in x.aminmax()) if x.numel() else (0.0, 1.0)
    if low > -LEAST / 2 and high < LEAST / 2 and (low, high) != (0.0, 0.0):
        return None
    found = TensorStatistics(name)
    found.update(x.cpu().numpy(), 0)
    return found


def no_grid(stats: TensorStatistics) -> bool:
    """Whether a tensor holds what is infinite, or beyond 1e30."""
    return bool(stats.inf or stats.sentinels)


def masked_tensors(model: ir.Model, seen: Mapping[str, TensorStatistics]) -> dict[str, str]:
    """The tensors in front of a softmax that hold masks, or can, with the reasons why they stay float.

    Args:
        model: as the target has it.
        seen: what the example shows, by tensor; nothing of tensors without large numbers.
    """
    return find_masks(model, seen).to_avoid(mixes=True, everything=False)
