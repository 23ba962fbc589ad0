"""An Expand in front of an operator that repeats elements by itself."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["needless_expands"]

_REPEATS = frozenset(
    {
        "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul",
        "Or", "Pow", "Sub", "Sum", "Where", "Xor",
    }
)  # fmt: skip
"""Operators that compute element by element, and repeat what is smaller."""


def needless_expands(model: ir.Model) -> list[Note]:
    """Let operators that repeat elements read what an Expand does, where another of their inputs has its shape.

    So exporters write a vector divided by its length. No number changes. onnxruntime takes 3 ns for each element that
    an Expand makes along the last axis; a target would quantize it by itself.

    Args:
        model: changed in place, shapes inferred.

    Returns:
        One note with the number of readers, if any.
    """
    count = 0
    for node in list(all_nodes(model)):
        if node.op_type != "Expand" or node.domain != "" or node.inputs[0] is None:
            continue
        made = node.outputs[0]
        for reader, index in list(made.uses()):
            if reader.op_type in _REPEATS and reader.domain == "" and _has_its_shape(reader, made):
                reader.replace_input_with(index, node.inputs[0])
                count += 1
        if not made.uses() and not made.is_graph_output() and node.graph is not None:
            node.graph.remove(node, safe=True)
    return [Note("needless_expands", "", f"{count} operators repeat what an Expand did")] if count else []


def _has_its_shape(reader: ir.Node, made: ir.Value) -> bool:
    """Whether another input of a node is known to have the shape of a tensor, by numbers and by names of free sizes."""
    dims = _dims(made)
    return dims is not None and any(_dims(value) == dims for value in reader.inputs if value is not made)


def _dims(value: ir.Value | None) -> list[int | str] | None:
    """Sizes and names of free ones; None where one has neither."""
    if value is None or value.shape is None:
        return None
    dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return None if None in dims else [dim for dim in dims if dim is not None]
