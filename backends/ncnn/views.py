"""Tensors of more axes than ncnn has, four and the batch: most are steps between two forms, and need not be made."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.merge_axes import merge_axes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import only_reader, rank_of, static_shape

__all__ = ["MOST", "fewer_axes", "too_many_axes"]

MOST = 5
"""Axes of a tensor at most."""
_VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_SHUFFLES = ((0, 1, 4, 2, 5, 3), (0, 1, 3, 5, 2, 4))
"""Transposes between two Reshapes that pnnx knows: PixelShuffle and PixelUnshuffle."""
_TELLS_BATCH = ("Conv", "ConvTranspose", "DepthToSpace", "MatMul", "PRelu")
_OF_KINDS = ("Normalization", "Pool")
"""Operators by which pnnx finds which axis is the batch, and how others end: without one there are but four axes."""


def fewer_axes(model: ir.Model) -> list[Note]:
    """Reshapes in a row, of which one gives more axes, become one; Transposes keep together what stays together.

    Args:
        model: changed in place, shapes inferred.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        behind = _behind(node) if len(node.outputs[0].shape or ()) >= MOST else None
        if behind is not None:
            _join(node, behind, namer)
            count += 1
    notes = [Note("ncnn", "", f"{count} Reshape nodes are part of the one behind them")] if count else []
    return [*notes, *merge_axes(model, MOST, _is_shuffle)]


def too_many_axes(node: ir.Node) -> str | None:
    """Why ncnn has no such Reshape, as part of a sentence; None where it has."""
    value = node.outputs[0] if node.op_type == "Reshape" and node.domain == "" else None
    rank = rank_of(value) or 0
    if value is None or rank < MOST or _is_view(only_reader(value)):
        return None
    if rank == MOST and _tells_batch(node.graph):
        return "to 5 axes of which the first is another" if _moves_another_first(node) else None
    if rank == MOST + 1 and _is_shuffle(only_reader(value)):
        return None
    return f"to {rank} axes" if rank > MOST else f"to {rank} axes in a model of which pnnx cannot tell the batch"


def _is_view(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in _VIEWS and node.domain == ""


def _behind(node: ir.Node) -> ir.Node | None:
    """The one view that reads a view."""
    reader = only_reader(node.outputs[0]) if _is_view(node) else None
    known = reader is not None and _is_view(reader) and static_shape(reader.outputs[0]) is not None
    return reader if known and reader is not None and reader.graph is node.graph else None


def _join(node: ir.Node, behind: ir.Node, namer: Namer) -> None:
    """Let a view read what the one in front of it reads, which goes."""
    old, graph = behind.outputs[0], node.graph
    sizes = static_shape(old)
    assert sizes is not None and isinstance(graph, ir.Graph)
    wanted = set_constant(graph, namer, f"{old.name}_sizes", np.array(sizes, np.int64))
    behind.op_type = "Reshape"
    behind.attributes.clear()
    behind.resize_inputs(2)
    behind.replace_input_with(0, node.inputs[0])
    behind.replace_input_with(1, wanted)
    remove_nodes([node])


def _moves_another_first(node: ir.Node) -> bool:
    """Whether a Transpose reads what has another first axis than the batch."""
    value, data = node.outputs[0], node.inputs[0]
    sizes = [v.shape[0] if v is not None and v.shape else None for v in (data, value)]
    return sizes[0] != sizes[1] and any(use.node.op_type == "Transpose" for use in value.uses())


def _tells_batch(graph: ir.Graph | ir.Function | None) -> bool:
    names = [node.op_type for node in graph if node.domain == ""] if graph is not None else []
    return any(name in _TELLS_BATCH or name.endswith(_OF_KINDS) for name in names)


def _is_shuffle(node: ir.Node | None) -> bool:
    """A Transpose that pnnx takes for a PixelShuffle or PixelUnshuffle, a Reshape behind it."""
    if node is None or node.op_type != "Transpose" or tuple(node.attributes.get_ints("perm", ())) not in _SHUFFLES:
        return False
    behind = only_reader(node.outputs[0])
    return behind is not None and behind.op_type == "Reshape" and len(behind.outputs[0].shape or ()) == MOST - 1
