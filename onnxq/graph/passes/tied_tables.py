"""Tables whose rows are picked and that a layer multiplies with as well: a language model's embedding, and its head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, rank_of

__all__ = ["holds_a_table", "tables_of"]

_MATRIX = 2
_COMPARED = 64
"""Rows that are compared: two tables that agree in so many are the same."""


def tables_of(model: ir.Model) -> list[ir.Value]:
    """Constants of two axes that a Gather picks from."""
    read = (node.inputs[0] for node in all_nodes(model) if node.op_type == "Gather" and node.domain == "")
    found = (value for value in read if value is not None and value.const_value is not None)
    return list(dict.fromkeys(value for value in found if rank_of(value) == _MATRIX))


def holds_a_table(weight: ir.Value, tables: Sequence[ir.Value]) -> bool:
    """Whether a weight has the numbers of a table, turned or not."""
    if weight.shape is None or len(weight.shape) != _MATRIX:
        return False
    sizes = set(weight.shape)
    alike = [table for table in tables if table is weight or (table.shape is not None and set(table.shape) == sizes)]
    one = constant_array(weight) if alike else None
    if one is None:
        return False
    others = [array for table in alike if (array := constant_array(table)) is not None]
    return any(_same(turned, other) for turned in (one, one.T) for other in others)


def _same(one: AnyArray, other: AnyArray) -> bool:
    if one.shape != other.shape:
        return False
    step = max(1, len(one) // _COMPARED)
    return bool(np.array_equal(one[::step], other[::step]))
