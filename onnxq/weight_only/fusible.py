"""What stands before and behind products with weights in DequantizeLinear, written so that onnxruntime fuses them.

onnxruntime (seen in 1.32) makes a DequantizeLinear with blocks and its MatMul one MatMulNBits, but takes two cases for
products of integers, fuses nothing and unpacks the whole weight at each run:

* The product goes to a Relu or Clip alone and that to a single other node, as in a feed-forward network without biases:
  it looks for a QuantizeLinear behind the Relu. Max and Min give the same numbers and are no such thing to it.
* What is multiplied comes from a DequantizeLinear as well, as rows of a table do: a Reshape in between, to the same
  shape, moves no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.values import only_reader, size_along

__all__ = ["let_fuse"]


def let_fuse(weights: Iterable[ir.Value], namer: Namer) -> None:
    """Write what hinders onnxruntime otherwise, in place; names of the model's own nodes and tensors stay.

    Args:
        weights: what DequantizeLinear unpack, each read by MatMul alone.
        namer: of their model.
    """
    apart: dict[ir.Value, ir.Value] = {}
    for product in [node for weight in weights for node, _ in weight.uses()]:
        node = only_reader(product.outputs[0])
        bounded = node is not None and node.domain == "" and node.op_type in ("Relu", "Clip")
        if node is not None and bounded and node.inputs[0] is product.outputs[0] and only_reader(node.outputs[0]):
            _write(node, _bounds(node, namer), namer)
        data = product.inputs[0]
        if data is not None and (reshaped := apart.get(data) or _reshaped(data, namer)) is not None:
            apart[data] = reshaped
            product.replace_input_with(0, reshaped)


def _reshaped(data: ir.Value, namer: Namer) -> ir.Value | None:
    """What a DequantizeLinear makes, behind a Reshape; None if it is not made so, or of an unknown number of axes."""
    node = data.producer()
    size = size_along(data, -1)
    if node is None or node.op_type != "DequantizeLinear" or not node.attributes.get_int("block_size", 0):
        return None
    if data.shape is None or size is None:
        return None
    assert isinstance(node.graph, ir.Graph)
    shape: NDArray[np.int64] = np.asarray([0] * (len(data.shape) - 1) + [size], np.int64)  # 0: as it is
    same = set_constant(node.graph, namer, f"{data.name}_shape", shape)
    made = ir.node("Reshape", [data, same], name=namer.node(f"{node.name}_Reshape"))
    made.outputs[0].name, made.outputs[0].type = namer.fresh(f"{data.name}_rows"), data.type
    made.outputs[0].shape = data.shape
    node.graph.insert_after(node, made)
    return made.outputs[0]


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
