"""Gathers of narrow rows, of which the HTP picks others than asked.

Of rows of 8, 16 or 32 bytes, and of 32 indices or more, the emulator of onnxruntime-qnn 2.7.0 reads the last row as
zeros, and where axes are in front of the one that is picked along, rows of another place: two thirds of the numbers are
wrong. Right are rows of other sizes, fewer indices, constants that are picked from, all that is picked along the last
axis, and GatherElements.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import SAME_NUMBERS, is_constant, static_shape

__all__ = ["widen_rows"]

_NARROW = frozenset({4, 8, 16, 32})
"""Elements of a row of 8, 16 or 32 bytes, of 8 or of 16 bits each."""
_MANY = 32
"""As many indices as it picks wrongly."""


def widen_rows(model: ir.Model) -> list[Note]:
    """Let a Gather of narrow rows pick along the last axis, between two Transposes.

    Args:
        model: changed in place, shapes known as far as they can be. The node keeps its name, its output too.

    Returns:
        One note with the number of nodes, if any.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        if node.op_type == "Gather" and node.domain == "" and _picked_wrongly(node):
            _turn(node, namer)
            count += 1
    what = f"{count} Gather pick along the last axis: the HTP picks other rows where they are narrow"
    return [Note("narrow_rows", "", what)] if count else []


def _picked_wrongly(node: ir.Node) -> bool:
    data, indices = node.inputs
    sizes, many = static_shape(data), static_shape(indices)
    if sizes is None or many is None or is_constant(data):
        return False
    axis = node.attributes.get_int("axis", 0) % len(sizes)
    return int(np.prod(sizes[axis + 1 :])) in _NARROW and axis < len(sizes) - 1 and int(np.prod(many)) >= _MANY


def _turn(node: ir.Node, namer: Namer) -> None:
    data, indices = node.inputs
    old, graph = node.outputs[0], node.graph
    sizes, many = static_shape(data), static_shape(indices)
    assert data is not None and indices is not None and sizes is not None and many is not None
    assert isinstance(graph, ir.Graph)
    rank, axis = len(sizes), node.attributes.get_int("axis", 0) % len(sizes)
    rest = rank - axis - 1
    there = [*range(axis), *range(axis + 1, rank), axis]
    back = [*range(axis), *range(rank - 1, rank - 1 + len(many)), *range(axis, axis + rest)]
    first = ir.node("Transpose", [data], {"perm": there}, name=namer.node(f"{node.name}_there"))
    turned = first.outputs[0]
    turned.name, turned.type = namer.fresh(f"{old.name}_turned"), data.type
    turned.shape, turned.meta[SAME_NUMBERS] = ir.Shape([sizes[i] for i in there]), data.name
    gather = ir.node("Gather", [turned, indices], {"axis": rank - 1}, name=node.name)
    picked = gather.outputs[0]
    picked.name, picked.type = namer.fresh(f"{old.name}_picked"), old.type
    picked.shape = ir.Shape([*sizes[:axis], *sizes[axis + 1 :], *many])
    picked.meta[SAME_NUMBERS] = old.name
    last = ir.node("Transpose", [picked], {"perm": back}, name=namer.node(f"{node.name}_back"))
    replace_nodes([node], first, gather, last)
