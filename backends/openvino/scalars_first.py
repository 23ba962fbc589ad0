"""Scalars that the rows of a table are multiplied by, as a transformer's embeddings are scaled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.backends.openvino.integers import MOVES
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant

__all__ = ["scalars_first"]


def scalars_first(model: ir.Model) -> list[Note]:
    """Name the scalar first where the rows of a table are multiplied by it, or it is added to them.

    Named second, OpenVINO 2026.4 takes it for the scale of integers, moves it behind what reads them, and refuses the
    model where a product of two activations is among that. With a function between table and scalar it does so in
    either order; of several scalars in a row see :mod:`onnxq.backends.openvino.scaled_tables`.

    Args:
        model: changed in place; nodes and tensors keep their names, no number that the model computes changes.

    Returns:
        One note with the number of nodes, if any.
    """
    count = 0
    for node in all_nodes(model):
        if node.domain == "" and node.op_type in ("Add", "Mul") and _is_scalar(node.inputs[1]):
            data, scalar = node.inputs
            if _is_picked(data):
                node.replace_input_with(0, scalar)
                node.replace_input_with(1, data)
                count += 1
    return [Note("scalars_first", "", f"{count} scalars are named in front of what a table holds")] if count else []


def _is_scalar(value: ir.Value | None) -> bool:
    array = constant_array(value)
    return array is not None and array.size == 1 and np.issubdtype(array.dtype, np.floating)


def _is_picked(value: ir.Value | None) -> bool:
    """Whether a tensor is of rows of a table, wherever they have been moved since."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in MOVES and node.domain == "":
        value = node.inputs[0]
        if node.op_type == "Gather" and is_constant(value):
            return True
        node = value.producer() if value is not None else None
    return False
