"""Convolutions of volumes in groups, which RKNN-Toolkit2 computes wrongly or crashes on."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.passes.ungroup import ungroup
from onnxq.graph.values import AnyArray

__all__ = ["ungroup_volumes"]

_VOLUMES = 5
"""Axes of the weight of a convolution over three."""


def ungroup_volumes(model: ir.Model) -> list[Note]:
    """Write convolutions of volumes in groups as plain ones, with zeros for the channels of other groups.

    RKNN-Toolkit2 2.5.0 computes one whose every channel gives several wrongly, by up to 127 steps, and crashes on
    groups of several. Left are those whose every channel gives one, which it computes rightly.

    Args:
        model: changed in place; nodes and tensors keep their names, no number that the model computes changes.

    Returns:
        One note with the number of convolutions, if any.
    """
    count = ungroup(model, _is_wrong)
    what = f"{count} convolutions of volumes in groups are plain ones: RKNN-Toolkit2 computes them wrongly or crashes"
    return [Note("grouped_volumes", "", what)] if count else []


def _is_wrong(node: ir.Node, weight: AnyArray) -> bool:
    return weight.ndim == _VOLUMES and (node.attributes.get_int("group", 1), 1) != weight.shape[:2]
