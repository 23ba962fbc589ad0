"""RMSNorms in the one form that onnxruntime 1.32 makes a kernel of: squares by Pow, and a division by the root."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.onnxruntime.convolutions import UNKNOWN, elements_of
from onnxq.graph.passes.chain import Chain
from onnxq.graph.recognition.region import axes_of
from onnxq.graph.values import constant_array, only_reader, scalar

__all__ = ["POWERS", "reciprocal", "square"]

POWERS = 256
"""Elements from which on a Pow is written otherwise."""


def square(chain: Chain) -> ir.Value | None:
    """A square that is averaged, as the Pow by which onnxruntime knows an RMSNorm: .46 → .24 of the whole.

    Where it makes none of what is behind, a Pow takes two to three times as long as the product.
    """
    x = chain.x
    return chain.put("Pow", x, chain.number(2.0)) if chain.input(1) is x and _is_normalized(chain.node, x) else None


def reciprocal(chain: Chain) -> ir.Value | None:
    """That of a root, as the division by which onnxruntime knows an RMSNorm: .57 → .24 of the whole.

    Elsewhere onnxruntime makes a division of what it is multiplied with, which takes 1.2 times as long.
    """
    squared = _made_by(_made_by(_made_by(_made_by(chain.x, "Sqrt"), "Add"), "ReduceMean"), "Pow")
    if squared is None or squared.inputs[0] is None or not _is_normalized(squared, squared.inputs[0]):
        return None
    return chain.put("Div", chain.number(1.0), chain.x)


def _is_normalized(squared: ir.Node, x: ir.Value) -> bool:
    """Whether a tensor is divided by the root of the mean of its squares over its last axis, and scaled by a vector."""
    mean = _next(squared, "ReduceMean")
    if mean is None or x.shape is None or axes_of(mean) not in ((-1,), (len(x.shape) - 1,)):
        return False
    divided = _divided(_next(mean, "Add"), x) if mean.attributes.get_int("keepdims", 1) else None
    scaled = _next(divided, "Mul")
    weights = [constant_array(value) for value in scaled.inputs] if scaled is not None else []
    return any(array is not None and array.ndim == 1 for array in weights)


def _divided(mean: ir.Node | None, x: ir.Value) -> ir.Node | None:
    """The node that divides a tensor by the root of a mean, or multiplies it by what one is when divided by that."""
    root = _next(mean, "Sqrt")
    by_root = _next(root, "Reciprocal", "Div")
    if by_root is not None and by_root.op_type == "Div" and by_root.inputs[0] is x:
        return by_root
    if by_root is not None and by_root.op_type == "Div" and scalar(by_root.inputs[0]) != 1.0:
        return None
    if root is None:
        by_root = _next(mean, "Pow")
        if by_root is None or scalar(by_root.inputs[1]) != -0.5 or not _are_many(by_root.inputs[0]):
            return None
    product = _next(by_root, "Mul")
    return product if product is not None and x in product.inputs else None


def _are_many(value: ir.Value | None) -> bool:
    """Whether a Pow of so many elements is written as a root."""
    return elements_of(value.shape if value is not None and value.shape is not None else (UNKNOWN,)) >= POWERS


def _next(node: ir.Node | None, *ops: str) -> ir.Node | None:
    """The node that alone reads what another makes, of some operators."""
    reader = only_reader(node.outputs[0]) if node is not None else None
    return reader if reader is not None and reader.domain == "" and reader.op_type in ops else None


def _made_by(read: ir.Node | ir.Value | None, op: str) -> ir.Node | None:
    """The node of some operator that makes a tensor, or one that a node reads."""
    values = read.inputs if isinstance(read, ir.Node) else [read]
    makers = [value.producer() for value in values if value is not None]
    return next((node for node in makers if node is not None and node.op_type == op and node.domain == ""), None)
