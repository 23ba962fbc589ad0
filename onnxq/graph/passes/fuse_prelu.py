"""PRelu written as a chain of operators becomes the operator: TensorFlow and Keras have none, and write it in parts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, input_of, only_reader

__all__ = ["fuse_prelu"]


def fuse_prelu(model: ir.Model) -> list[Note]:
    """Replace ``Relu(x) + a (x - |x|) / 2``, ``Relu(x) - a Relu(-x)`` and ``Relu(x) + a Min(x, 0)`` by PRelu.

    ``Max(x, a x)`` is one too, where no slope is above 1. One slope for all is a LeakyRelu. The same numbers, but for
    the rounding of products of constants.

    Args:
        model: changed in place; constants must be folded and shapes known.

    Returns:
        One note with the number of chains replaced, if any.
    """
    namer = Namer(model)
    done = sum(_fuse(node, namer) for node in list(all_nodes(model)) if node.graph is not None)
    return [Note("fuse_prelu", "", f"{done} chains replaced by PRelu")] if done else []


def _fuse(node: ir.Node, namer: Namer) -> bool:
    if node.domain != "" or len(node.inputs) != 2 or not isinstance(node.graph, ir.Graph):
        return False
    for index in (0, 1):
        read, rest = node.inputs[index], node.inputs[1 - index]
        found = _as_maximum(read, rest) if node.op_type == "Max" else _as_sum(node.op_type, index, read, rest)
        if found is None or found[0].dtype is not ir.DataType.FLOAT or not _fits(found[1], found[0]):
            continue
        source, slope, chain = found
        if slope.size == 1:
            made = ir.node("LeakyRelu", [source], {"alpha": float(slope.item())}, name=node.name)
        else:
            constant = set_constant(node.graph, namer, f"{node.name}_slope", slope.astype(np.float32))
            made = ir.node("PRelu", [source, constant], name=node.name)
        stand_for(made, [*chain, node])
        replace_nodes([node], made)
        for left in reversed(chain):  # from the last on: nobody else reads them
            remove_nodes([left])
        return True
    return False


def _as_sum(
    op: str, index: int, positive: ir.Value | None, negative: ir.Value | None
) -> tuple[ir.Value, AnyArray, list[ir.Node]] | None:
    """What a sum or difference is a PRelu of, its slope, and the nodes that go, where its operands are both halves."""
    if op != "Add" and (op != "Sub" or index != 0):
        return None
    relu = _made_by(positive, "Relu")
    source = relu.inputs[0] if relu is not None else None
    found = _negative_part(negative, source) if source is not None else None
    if relu is None or source is None or found is None:
        return None
    slope, chain = found
    return source, -slope if op == "Sub" else slope, [relu, *chain]


def _as_maximum(source: ir.Value | None, scaled: ir.Value | None) -> tuple[ir.Value, AnyArray, list[ir.Node]] | None:
    """The same of the larger of a tensor and a multiple of it."""
    product = _made_by(scaled, "Mul")
    if source is None or product is None or source not in product.inputs:
        return None
    slope = constant_array(product.inputs[1 - list(product.inputs).index(source)])
    return (source, slope, [product]) if slope is not None and slope.size and (slope <= 1).all() else None


def _negative_part(value: ir.Value | None, source: ir.Value) -> tuple[AnyArray, list[ir.Node]] | None:
    """The slope, and the nodes in their order, where a tensor is ``slope * min(source, 0)``."""
    factor: AnyArray = np.ones((), np.float64)
    chain: list[ir.Node] = []
    while value is not None:
        node = value.producer()
        if node is None or node.domain != "" or only_reader(value) is None:
            return None
        chain.insert(0, node)
        if node.op_type == "Mul":
            index = 1 if constant_array(node.inputs[1]) is not None else 0
            array = constant_array(node.inputs[index])
            if array is None:
                return None
            factor, value = factor * array.astype(np.float64), node.inputs[1 - index]
            continue
        inner = _inner(node, source)
        return None if inner is None else (factor * inner[0], [*inner[1], *chain])
    return None


def _inner(node: ir.Node, source: ir.Value) -> tuple[float, list[ir.Node]] | None:
    """What a node's output is of ``min(source, 0)``, and the node in front of it that takes part."""
    first, second = node.inputs[0], input_of(node, 1)
    if node.op_type == "Sub" and first is source:
        before = _made_by(second, "Abs")
        return (2.0, [before]) if before is not None and before.inputs[0] is source else None
    if node.op_type == "Relu":
        before = _made_by(first, "Neg")
        return (-1.0, [before]) if before is not None and before.inputs[0] is source else None
    if node.op_type == "Min" and len(node.inputs) == 2 and source in (first, second):
        zero = constant_array(second if first is source else first)
        if zero is not None and zero.size == 1 and not zero.any() and _fits(zero, source):
            return 1.0, []
    return None


def _made_by(value: ir.Value | None, op: str) -> ir.Node | None:
    """The node that makes a tensor which one other reads, where it is of a type."""
    node = value.producer() if value is not None and only_reader(value) is not None else None
    return node if node is not None and node.op_type == op and node.domain == "" else None


def _fits(constant: AnyArray, source: ir.Value) -> bool:
    """Whether a constant has no more axes than a tensor, each as long or 1: PRelu keeps the shape that it reads."""
    shape = source.shape
    if shape is None or constant.ndim > len(shape):
        return constant.ndim == 0
    last = list(shape)[len(shape) - constant.ndim :]
    return all(size in (1, dim) for size, dim in zip(constant.shape, last, strict=True))
