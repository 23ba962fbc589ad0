"""Shapes and dimensions that are known before the model runs, as constants.

Exporters that leave one dimension free compute with all of them: ``Shape → Gather → Cast → Sqrt → Div`` is how the
scale of an attention with a free batch is written, whose width is known all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import remove_nodes, replace_by_constant
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array, input_of, static_shape

__all__ = ["fold_shapes"]

Dims = Sequence[int | ir.SymbolicDim]


def fold_shapes(model: ir.Model) -> list[Note]:
    """Shape and Size of tensors whose shape is known become constants, and so does what a Gather or Slice picks from a
    Shape where just these dimensions are known.

    Args:
        model: changed in place; shapes must be inferred.

    Returns:
        A note of how many, if any.
    """
    done: list[ir.Node] = []
    for graph in all_graphs(model):
        for node in graph:
            if node.domain != "" or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
                continue
            result = _known(node)
            if result is None or not node.outputs[0].name:
                continue
            replace_by_constant(node.outputs[0], ir.Tensor(result, name=node.outputs[0].name), graph)
            done.append(node)
    remove_nodes(done)
    return [Note("constants", "", f"{len(done)} shapes that are known became constants")] if done else []


def _known(node: ir.Node) -> NDArray[np.int64] | None:
    """What a node makes of the shape of a tensor, where it is known."""
    if node.op_type == "Size":
        shape = static_shape(node.inputs[0])
        return None if shape is None else np.array(math.prod(shape), np.int64)
    if node.op_type == "Shape":
        return _numbers(_dims_of(node))
    if node.op_type not in ("Gather", "Slice") or node.inputs[0] is None:
        return None
    producer = node.inputs[0].producer()
    dims = _dims_of(producer) if producer is not None and producer.op_type == "Shape" else None
    if dims is None:
        return None
    return _gathered(node, dims) if node.op_type == "Gather" else _sliced(node, dims)


def _dims_of(shape: ir.Node) -> Dims | None:
    """The dimensions that a Shape gives; None where not even their number is known."""
    source = shape.inputs[0]
    if shape.domain != "" or source is None or source.shape is None:
        return None
    start, end = shape.attributes.get_int("start", 0), shape.attributes.get_int("end", len(source.shape))
    return source.shape.dims[start:end]


def _gathered(node: ir.Node, dims: Dims) -> NDArray[np.int64] | None:
    index = constant_array(node.inputs[1])
    if index is None or any(not -len(dims) <= int(k) < len(dims) for k in index.reshape(-1)):
        return None
    picked = _numbers([dims[int(k)] for k in index.reshape(-1)])
    return None if picked is None else picked.reshape(index.shape)


def _sliced(node: ir.Node, dims: Dims) -> NDArray[np.int64] | None:
    arrays = [constant_array(value) for value in node.inputs[1:] if value is not None]
    numbers = [int(array.reshape(-1)[0]) for array in arrays if array is not None and array.size == 1]
    if len(numbers) != len(arrays) or len(numbers) < 2:
        return None  # one is computed
    step = numbers[-1] if input_of(node, 4) is not None else 1
    return _numbers(dims[numbers[0] : numbers[1] : step]) if step else None


def _numbers(dims: Dims | None) -> NDArray[np.int64] | None:
    """Dimensions as an array, where all of them are known."""
    if dims is None:
        return None
    known = [dim for dim in dims if isinstance(dim, int)]
    return np.array(known, np.int64) if len(known) == len(dims) else None
