"""A Resize that repeats and leaves out rows and columns, written as Gather nodes that say which."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.alone import run_alone
from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant, static_shape

__all__ = ["is_nearest", "nearest_gathers"]

_MOST = 2**31 - 1
"""Elements that positions of 32 bits can tell apart."""


def is_nearest(node: ir.Node) -> bool:
    """Whether a node is a Resize that takes the nearest element, which is the default of ``mode``."""
    return node.op_type == "Resize" and node.domain == "" and node.attributes.get_string("mode", "nearest") == "nearest"


def nearest_gathers(model: ir.Model, chosen: Callable[[ir.Node], bool]) -> list[Note]:
    """Write each chosen Resize to the nearest element as a Gather for each dimension that it does not just copy.

    Which elements it takes is found by running the node itself on positions, in onnxruntime. Left are those of free
    sizes, of sizes that are computed, and of regions of interest.

    Args:
        model: changed in place. The output keeps its name.
        chosen: which to write so.

    Returns:
        One note with the number of nodes, if any.
    """
    namer = Namer(model)
    count = 0
    for node in [node for node in all_nodes(model) if is_nearest(node) and chosen(node)]:
        taken = _taken(model, node)
        if taken:
            _gather(node, taken, namer)
            count += 1
    return [Note("nearest_gathers", "", f"{count} Resize nodes gather the nearest elements")] if count else []


def _taken(model: ir.Model, node: ir.Node) -> dict[int, NDArray[np.int64]] | None:
    """The positions that each dimension takes, but for those copied; ``None`` where more than sizes decides."""
    before = static_shape(node.inputs[0])
    rest = [value for value in node.inputs[1:] if value is not None]
    cropped = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if not before or 0 in before or np.prod(before) > _MOST or cropped or not all(map(is_constant, rest)):
        return None
    numbered = np.arange(np.prod(before), dtype=np.int32).reshape(before)
    arrays = [numbered, *map(constant_array, node.inputs[1:])]
    array = run_alone(node, arrays, opset=model.opset_imports[""], ir_version=model.ir_version)
    if array is None or not array.size:
        return None
    found = {}
    for axis, (old, new) in enumerate(zip(before, array.shape, strict=True)):
        line = np.moveaxis(array, axis, 0).reshape(new, -1)[:, 0]
        positions = line.astype(np.int64) // int(np.prod(before[axis + 1 :])) % old
        if not np.array_equal(positions, np.arange(old)):  # sizes may be equal where scales are not 1
            found[axis] = positions
    return found


def _gather(node: ir.Node, taken: dict[int, NDArray[np.int64]], namer: Namer) -> None:
    value, old, graph = node.inputs[0], node.outputs[0], node.graph
    sizes = list(static_shape(value) or ())
    assert isinstance(graph, ir.Graph) and value is not None
    made = []
    for axis, positions in taken.items():
        which = set_constant(graph, namer, f"{old.name}_positions", positions)
        gather = ir.node("Gather", [value, which], {"axis": axis}, name=namer.node(f"{node.name}_Gather"))
        sizes[axis] = positions.size
        value = gather.outputs[0]
        value.name, value.type, value.shape = namer.fresh(f"{old.name}_gathered"), old.type, ir.Shape(sizes)
        made.append(gather)
    replace_nodes([node], *made)
