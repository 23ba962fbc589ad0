"""What a DFT says of itself."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.values import input_of, integer

__all__ = ["AXIS_AS_INPUT", "dft_axis"]

AXIS_AS_INPUT = 20
"""Opset from which on a DFT reads its axis, the one before the last if none is given; before, the second is default."""


def dft_axis(node: ir.Node, opset: int) -> int | None:
    """The axis that a DFT transforms, as it is written; None where it is computed."""
    if opset < AXIS_AS_INPUT:
        return node.attributes.get_int("axis", 1)
    value = input_of(node, 2)
    return -2 if value is None else integer(value)
