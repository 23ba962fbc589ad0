"""Arithmetic with scalars on the rows of a table, done to the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.openvino.integers import MOVES
from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant, only_reader, rank_of

__all__ = ["scaled_tables"]

_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Div": np.divide,
    "Mul": np.multiply,
    "Sub": np.subtract,
}


def scaled_tables(model: ir.Model) -> list[Note]:
    """Add scalars to a table, or multiply it, where a transformer does so with the rows that it picks.

    That is several scalars in a row, or one that is subtracted or divided by: OpenVINO 2026.4 takes each for the scale
    of integers and refuses the model where a product of two activations is behind it. Of one that is added or
    multiplied with, see :mod:`onnxq.backends.openvino.scalars_first`, it does not. A table that others read too is
    copied. The numbers are the same, bit for bit.

    Args:
        model: changed in place; nodes and tensors that are left keep their names, but for what lies between the table
            and the last scalar.

    Returns:
        One note with the number of nodes, if any.
    """
    namer, count = Namer(model), 0
    taken: set[ir.Node] = set()
    for node in list(all_nodes(model)):
        path = _path(node)
        if path is None:
            continue
        wanted = node.op_type in ("Div", "Sub") or path[0] in taken or _computes_on(node)
        if wanted:
            _fold(node, path, namer)
            taken.add(path[0])
            count += 1
    return [Note("scaled_tables", "", f"{count} scalars are part of a table")] if count else []


def _path(node: ir.Node) -> list[ir.Node] | None:
    """From the Gather that picks rows of a table to what a node adds a scalar to, say; each read by the next alone."""
    if node.domain != "" or node.op_type not in _COMPUTED:
        return None
    data = _data(node)
    found: list[ir.Node] = []
    while data is not None and only_reader(data) is not None:
        maker = data.producer()
        if maker is None or maker.op_type not in MOVES or maker.domain != "" or len(maker.outputs) != 1:
            return None
        found.insert(0, maker)
        data = maker.inputs[0]
        if maker.op_type == "Gather" and is_constant(data):
            kinds = {value.dtype for value in (data, _scalar(node)) if value is not None}
            return found if kinds == {ir.DataType.FLOAT} else None
    return None


def _scalar(node: ir.Node) -> ir.Value | None:
    """The operand that is a number of no more axes than the other."""
    for value, other in (node.inputs, reversed(node.inputs)):
        array = constant_array(value)
        rank = rank_of(other) or 0
        if array is not None and array.size == 1 and array.ndim <= rank:
            return value
    return None


def _data(node: ir.Node) -> ir.Value | None:
    scalar = _scalar(node)
    if scalar is None:
        return None
    return node.inputs[1] if node.inputs[0] is scalar else node.inputs[0]


def _computes_on(node: ir.Node) -> bool:
    """Whether another scalar follows."""
    reader = only_reader(node.outputs[0])
    while reader is not None and reader.op_type in MOVES and reader.domain == "" and len(reader.outputs) == 1:
        reader = only_reader(reader.outputs[0])
    return reader is not None and reader.domain == "" and reader.op_type in _COMPUTED and _scalar(reader) is not None


def _fold(node: ir.Node, path: list[ir.Node], namer: Namer) -> None:
    """Compute a node on the table of the first node of a path, in its place."""
    gather, data, scalar = path[0], _data(node), _scalar(node)
    table, number = constant_array(gather.inputs[0]), constant_array(scalar)
    assert table is not None and number is not None and data is not None and isinstance(gather.graph, ir.Graph)
    operands = (number.reshape(()), table) if node.inputs[0] is scalar else (table, number.reshape(()))
    with np.errstate(all="ignore"):
        scaled = np.asarray(_COMPUTED[node.op_type](*operands), np.float32)
    old = gather.inputs[0]
    assert old is not None
    gather.replace_input_with(0, set_constant(gather.graph, namer, f"{old.name}_scaled", scaled))
    for maker in path[:-1]:
        maker.outputs[0].name = namer.fresh(f"{maker.outputs[0].name}_scaled")
    rename_output(data, node.outputs[0])
    remove_nodes([node])
