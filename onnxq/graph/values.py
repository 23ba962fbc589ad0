"""Small questions on onnx-ir values that every pass asks, with onnx-ir's traps wrapped once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.traverse import all_nodes

__all__ = [
    "COMPUTES_OTHER",
    "LEFT_ALONE",
    "MADE",
    "OTHER_AXES",
    "SAME_NUMBERS",
    "STANDS_FOR",
    "AnyArray",
    "array_of",
    "constant_array",
    "filled_values",
    "input_of",
    "integer",
    "is_constant",
    "is_filled",
    "is_read",
    "is_stored",
    "only_reader",
    "rank_of",
    "reads_as_much",
    "scalar",
    "size_along",
    "static_shape",
    "tensor_of",
]

MADE = "onnxq.made"
"""Mark in ``ir.Value.meta`` of a tensor that a target's rewriting has made: no data has been run through it."""
OTHER_AXES = "onnxq.other_axes"
"""Mark in ``ir.Value.meta`` of a constant that a pass has made of another: its name, and the order of its axes."""
SAME_NUMBERS = "onnxq.same_numbers"
"""Mark in ``ir.Value.meta`` of a tensor that a pass has made: the name of one that was there and holds its numbers."""
STANDS_FOR = "onnxq.stands_for"
"""Mark in ``ir.Node.meta`` of a node that a pass has made: names, types and tensors of those whose place it took."""

LEFT_ALONE = "onnxq.left_alone"
"""Mark in ``ir.Node.meta`` of a node that no pass may make compute other numbers: it is to stay float."""

COMPUTES_OTHER = "onnxq.computes_other"
"""Mark in ``ir.Node.meta`` of a node that a target's rewrite lets compute other numbers: the type that it had."""

AnyArray = np.ndarray[Any, np.dtype[Any]]
_MOVES = frozenset(
    {"Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is fixed when the model is made: an initializer that no caller can override."""
    return value is not None and value.const_value is not None and value.is_initializer() and not value.is_graph_input()


def is_stored(value: ir.Value | None) -> bool:
    """Whether a value is a constant, or what a Cast, or a Cast, a Sub and a Cast, make of constants."""
    made = value.producer() if value is not None else None
    if is_constant(value) or made is None or made.domain or made.op_type not in ("Cast", "Sub"):
        return is_constant(value)
    return all(is_stored(read) for read in made.inputs)


def is_filled(value: ir.Value | None) -> bool:
    """Whether runs differ in the shape of a value at most: a constant, or one number repeated, moved about or not."""
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        read = stack.pop()
        if read is None:
            return False
        if read in seen or is_constant(read):
            continue
        seen.add(read)
        sources = _filled_from(read.producer())
        if sources is None:
            return False
        stack += sources
    return True


def filled_values(model: ir.Model) -> set[ir.Value]:
    """What nodes write and :func:`is_filled`."""
    filled: set[ir.Value] = set()
    for node in all_nodes(model):
        sources = _filled_from(node)
        if sources is not None and all(v is not None and (v in filled or is_constant(v)) for v in sources):
            filled.update(node.outputs)
    return filled


def _filled_from(node: ir.Node | None) -> Sequence[ir.Value | None] | None:
    """What has to be filled for a node's outputs to be; None where they never are."""
    if node is None or node.domain != "":
        return None
    if node.op_type == "ConstantOfShape":
        return ()
    if node.op_type not in _MOVES:
        return None
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]


def array_of(tensor: ir.TensorProtocol) -> AnyArray:
    """The numbers of a tensor.

    Raises:
        ModelError: they cannot be read (file gone, too short, a malformed tensor).
    """
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError, TypeError, AssertionError) as error:
        raise ModelError(f"its data cannot be read: {error}", where=f"tensor '{tensor.name}'") from error


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """The tensor that an attribute holds.

    ``as_tensor`` goes through all members of a protocol at each call: .1 ms, and exporters write a Constant node for
    each number.

    Raises:
        TypeError: it holds no tensor.
    """
    tensor: ir.TensorProtocol = attribute.value if attribute.type is ir.AttributeType.TENSOR else attribute.as_tensor()
    return tensor


def constant_array(value: ir.Value | None) -> AnyArray | None:
    """The numbers of a constant value (read-only view where possible), or None when it is not a constant."""
    if value is None or value.const_value is None or not is_constant(value):
        return None
    return array_of(value.const_value)


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant of one element, None for anything else."""
    if value is None or value.const_value is None or value.const_value.size != 1 or not is_constant(value):
        return None
    array = array_of(value.const_value)
    return float(array.reshape(())) if array.dtype.kind in "fiu" else None


def integer(value: ir.Value | None) -> int | None:
    """As :func:`scalar`, of integers."""
    number = scalar(value)
    return None if number is None else int(number)


def input_of(node: ir.Node, index: int | None) -> ir.Value | None:
    """An input of a node; None where it is left out, or ``index`` is None."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def is_read(node: ir.Node, index: int) -> bool:
    """Whether an output of a node is there and read."""
    output = node.outputs[index] if index < len(node.outputs) else None
    return output is not None and (bool(output.uses()) or output.is_graph_output())


def only_reader(value: ir.Value) -> ir.Node | None:
    """The node that alone reads ``value``, once; None when it has other readers or is a graph output."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    return next(iter(uses)).node


def reads_as_much(rows: ir.Value, table: ir.Value) -> bool:
    """Whether at least as many numbers are picked as there are to pick from, by shapes that are known.

    Args:
        rows: what a Gather gives.
        table: what it reads.
    """
    sizes = [math.prod(shape) for shape in map(static_shape, (rows, table)) if shape is not None]
    return len(sizes) == len((rows, table)) and sizes[0] >= sizes[1] > 0


def rank_of(value: ir.Value | None) -> int | None:
    """The number of axes of a value, where it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def size_along(value: ir.Value | None, axis: int) -> int | None:
    """The size of an axis, where a value has it and it is known."""
    shape = value.shape if value is not None else None
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value when every dimension is a known number."""
    if value is None or value.shape is None:
        return None
    dims: list[int] = []
    for dim in value.shape:
        if not isinstance(dim, int):
            return None
        dims.append(dim)
    return tuple(dims)
