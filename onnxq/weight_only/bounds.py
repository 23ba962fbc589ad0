"""Bounds behind products with weights in DequantizeLinear, written so that onnxruntime fuses weight and product.

onnxruntime (seen in 1.32) makes a DequantizeLinear with blocks and its MatMul one MatMulNBits, but not where the
product goes to a Relu or Clip alone and that to a single other node, as in a feed-forward network without biases: there
it looks for a QuantizeLinear behind the Relu, finds none, and unpacks the whole weight at each run. Max and Min give
the same numbers and are no such thing to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.values import only_reader, set_constant

__all__ = ["write_bounds"]


def write_bounds(weights: Iterable[ir.Value], namer: Namer) -> None:
    """Write Relu and Clip as Max and Min where they hinder onnxruntime, in place; node and tensor names stay.

    Args:
        weights: what DequantizeLinear unpack, each read by MatMul alone.
        namer: of their model.
    """
    for product in [node for weight in weights for node, _ in weight.uses()]:
        node = only_reader(product.outputs[0])
        bounded = node is not None and node.domain == "" and node.op_type in ("Relu", "Clip")
        if node is not None and bounded and node.inputs[0] is product.outputs[0] and only_reader(node.outputs[0]):
            _write(node, _bounds(node, namer), namer)


def _bounds(node: ir.Node, namer: Namer) -> list[tuple[str, ir.Value]]:
    """Operators that bound from one side each, and what they bound by."""
    if node.op_type == "Clip":
        sides = zip(("Max", "Min"), node.inputs[1:], strict=False)
        return [(op, bound) for op, bound in sides if bound is not None]
    assert isinstance(node.graph, ir.Graph)
    zero = np.zeros((), np.float32)
    return [("Max", set_constant(node.graph, namer, f"{node.outputs[0].name}_least", zero))]


def _write(node: ir.Node, bounds: Sequence[tuple[str, ir.Value]], namer: Namer) -> None:
    graph, old, value = node.graph, node.outputs[0], node.inputs[0]
    assert isinstance(graph, ir.Graph) and value is not None
    if not bounds:
        return
    name, node.name = node.name, None
    for position, (op, bound) in enumerate(bounds, 1):
        last = position == len(bounds)
        made = ir.node(op, [value, bound], name=name if last else namer.node(f"{name}_{op}"))
        value = made.outputs[0]
        value.name = None if last else namer.fresh(f"{old.name}_{op}")
        value.type, value.shape = old.type, old.shape
        graph.insert_before(node, made)
    value.doc_string = old.doc_string
    value.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(value)
    value.name, old.name = old.name, None
    graph.remove(node, safe=True)
