"""HardSigmoid behind a layer as a Clip, for what has none of the first."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.layer import find_layer
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.fold_affine import fold_affine
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import only_reader

__all__ = ["hard_sigmoids"]

_ALPHA, _BETA = 0.2, 0.5
"""ONNX's defaults."""


def hard_sigmoids(model: ir.Model) -> list[Note]:
    """Write max(0, min(1, alpha x + beta)) behind a layer that it alone reads as a Clip from 0 to 1.

    alpha and beta go into the layer's weights and bias.

    Args:
        model: changed in place, normalized; nodes and tensors that stay keep their names.

    Returns:
        One note with the number of nodes, if any.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        data = node.inputs[0] if node.op_type == "HardSigmoid" and node.domain == "" else None
        if data is None or data.dtype is not ir.DataType.FLOAT or not isinstance(node.graph, ir.Graph):
            continue
        alpha, beta = node.attributes.get_float("alpha", _ALPHA), node.attributes.get_float("beta", _BETA)
        if find_layer(data) is None or only_reader(data) is not node:
            continue
        steps = [("Mul", (alpha,)), ("Add", (beta,)), ("Clip", (0.0, 1.0))]
        _write(node, data, steps, namer)
        count += 1
    if not count:
        return []
    return [Note("hard_sigmoids", "", f"{count} HardSigmoid became Clips"), *fold_affine(model)]


def _write(node: ir.Node, data: ir.Value, steps: list[tuple[str, tuple[float, ...]]], namer: Namer) -> None:
    graph, made = node.graph, list[ir.Node]()
    assert isinstance(graph, ir.Graph)
    for op, numbers in steps:
        constants = [set_constant(graph, namer, f"{node.name}_{op}", np.asarray(one, np.float32)) for one in numbers]
        step = ir.node(op, [data, *constants], name=namer.node(f"{node.name}_{op}"))
        stand_for(step, [node])
        data = step.outputs[0]
        data.name, data.type = namer.fresh(f"{node.outputs[0].name}_{op.lower()}"), node.outputs[0].type
        data.shape = node.outputs[0].shape
        made.append(step)
    replace_nodes([node], *made)
