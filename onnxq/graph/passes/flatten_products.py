"""Products of batches of matrices of many dimensions, with one batch dimension in their place."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.between_reshapes import between_reshapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant, rank_of

__all__ = ["flatten_products", "is_deep_product"]


def is_deep_product(node: ir.Node, most: int) -> bool:
    """Whether a node is a MatMul of two computed tensors, one of them known to have more than ``most`` dimensions."""
    if node.op_type != "MatMul" or node.domain != "" or any(v is None or is_constant(v) for v in node.inputs):
        return False
    return any((rank_of(v) or 0) > most for v in node.inputs)


def flatten_products(model: ir.Model, most: int) -> list[Note]:
    """Write each MatMul of two computed tensors of more than ``most`` dimensions as one over a single batch dimension.

    Reshape nodes stand before and behind it, and the numbers are the same. Left are those whose batch dimensions
    differ, or whose sizes are not known: all but the first must be.

    Args:
        model: changed in place. The node keeps its name, its output too.
        most: dimensions that may stay, at least 3.

    Returns:
        One note with the number of products, if any.
    """
    namer = Namer(model)
    count = 0
    for node in [node for node in all_nodes(model) if is_deep_product(node, most)]:
        left, right = (_sizes(value) for value in node.inputs)
        if left is not None and right is not None and left[:-2] == right[:-2]:
            flat, deep = ([size if isinstance(size, int) else -1 for size in sizes] for sizes in (left, right))
            batch = max(prod(flat[:-2]), -1)
            given = ([batch, *flat[-2:]], [batch, *deep[-2:]])
            between_reshapes(node, given, [batch, flat[-2], deep[-1]], [*flat[:-1], deep[-1]], namer)
            count += 1
    return [Note("flatten_products", "", f"{count} products have one batch dimension")] if count else []


def _sizes(value: ir.Value | None) -> list[int | str] | None:
    """The sizes of a tensor: numbers, but for the first, which may be a name."""
    if value is None or value.shape is None:
        return None
    first, *rest = (dim if isinstance(dim, int) else dim.value for dim in value.shape)
    numbers = [size for size in rest if isinstance(size, int)]
    return [first, *numbers] if first is not None and len(numbers) == len(rest) else None
