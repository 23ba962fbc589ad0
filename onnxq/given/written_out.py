"""A bound that a quantizer keeps on the side, written as a node behind the tensor that it reads."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.plan import Edge

__all__ = ["bound_behind"]


def bound_behind(
    value: ir.Value, low: float, high: float | None, namer: Namer, *, readers: Container[Edge] | None
) -> ir.Node:
    """A Clip behind a tensor that a node makes; a Relu where it ends at 0 below alone.

    Args:
        value: the tensor.
        low: lowest number that passes.
        high: highest, or None.
        namer: of the model.
        readers: the inputs that read what passes, under another name. All, and the model's output, if None: what passes
            has the name of the tensor then.
    """
    maker, name = value.producer(), value.name
    assert maker is not None and isinstance(maker.graph, ir.Graph)
    inputs, op = [value], "Relu"
    if low != 0.0 or high is not None:
        op, ends = "Clip", (low, np.inf if high is None else high)
        inputs += [set_constant(maker.graph, namer, "bound", np.float32(end).reshape(())) for end in ends]
    node = ir.node(op, inputs, name=namer.node(f"{name}_{op}"))
    made = node.outputs[0]
    made.type, made.shape = value.type, value.shape.copy() if value.shape is not None else None
    uses, output = [use for use in value.uses() if use.node is not node], value.is_graph_output()
    maker.graph.insert_after(maker, [node])
    if readers is None:
        value.name = namer.fresh(f"{name}_before")
        made.name = name
    else:
        made.name = namer.fresh(f"{name}_bounded")
        uses = [use for use in uses if Edge(use.node.name or "", use.idx) in readers]
    for use in uses:
        use.node.replace_input_with(use.idx, made)
    if output and readers is None:
        outputs = maker.graph.outputs
        outputs[outputs.index(value)] = made
    return node
