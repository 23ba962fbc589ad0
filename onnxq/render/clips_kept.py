"""Of a tensor whose Clip its quantizers compute on the side: the bounds of that Clip.

A grid that begins at 0 shows that a Relu was left out in front of it. Where any other Clip ended nothing shows: without
a word of it whoever takes the quantizers out of the file has a float model that computes something else. The word is an
entry of the tensor's metadata; other tools pass over it.
"""

from __future__ import annotations

import math

import onnx_ir as ir

__all__ = ["mark_clip", "marked_clip", "take_mark"]

_KEY = "onnxq.clip"
_SHOWN = ((0.0, math.inf), (0.0, 6.0))
"""Bounds of a Relu and a Relu6, which the grid shows."""


def mark_clip(value: ir.Value, low: float, high: float) -> None:
    """Say between which numbers a tensor lies once its quantizers have saturated it, where the grid does not show it.

    Args:
        value: the tensor; its metadata is changed.
        low: lowest number that the Clip left out lets through.
        high: highest.
    """
    if (low, high) not in _SHOWN:
        value.metadata_props[_KEY] = f"{low!r} {high!r}"


def marked_clip(value: ir.Value) -> tuple[float, float] | None:
    """The bounds that a tensor is marked with; None where it is not marked."""
    try:
        low, high = map(float, value.metadata_props.get(_KEY, "").split())
    except ValueError:
        return None
    return (low, high) if low <= high else None


def take_mark(value: ir.Value) -> None:
    """Take the mark off a tensor whose Clip is a node again."""
    value.metadata_props.pop(_KEY, None)
