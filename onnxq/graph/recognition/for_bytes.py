"""Inputs whose pictures a model scales itself, as Keras' applications do: they take the bytes, 0 to 255.

Values of 0 to 1 are then scaled twice: the model sees black pictures, all nearly the same, and what is measured on them
is no measure of anything.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.values import constant_array, only_reader, rank_of

__all__ = ["MOVES", "for_bytes"]

MOVES = ("Cast", "Gather", "Identity", "Pad", "Reshape", "Resize", "Slice", "Transpose")
"""What may stand in front of the arithmetic that scales or normalizes pictures inside a model."""
_LEAST, _MOST = 1 / 260, 1 / 50
"""Factors on bytes: 1/255, 1/127.5 and the reciprocal of the standard deviation of photos, 1/57 to 1/74."""
_MEAN = 16.0
"""A mean above this is one of bytes."""


def for_bytes(model: ir.Model) -> dict[str, str]:
    """Inputs of four axes with which the model calculates as one does with bytes.

    Returns:
        Input name → what does it, for people.
    """
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        node = _first(value) if rank_of(value) == 4 else None
        if node is not None and _scales(node):
            found[value.name or ""] = f"node {node.name or node.outputs[0].name!r} ({node.op_type})"
    return found


def _first(value: ir.Value) -> ir.Node | None:
    """What reads a value first, apart from what moves it."""
    node = only_reader(value)
    while node is not None and node.op_type in MOVES:
        node = only_reader(node.outputs[0])
    return node


def _scales(node: ir.Node) -> bool:
    """Whether a node multiplies by about 1/255, or takes off the mean of bytes."""
    if node.op_type not in ("Add", "Div", "Mul", "Sub"):
        return False
    arrays = [constant_array(value) for value in node.inputs]
    if node.op_type in ("Div", "Sub"):
        arrays = arrays[1:]
    array = next((a for a in arrays if a is not None), None)
    if array is None or array.dtype.kind != "f" or not array.size:
        return False
    low, high = float(np.min(array)), float(np.max(array))
    if node.op_type == "Mul":
        return low >= _LEAST and high <= _MOST
    if node.op_type == "Div":
        return low >= 1 / _MOST and high <= 1 / _LEAST
    return low >= _MEAN if node.op_type == "Sub" else high <= -_MEAN
