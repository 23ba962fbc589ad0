"""A last rewriting of a rendered model: a DequantizeLinear for each that reads it."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.render.wiring import describe

__all__ = ["own_dequantizers"]


def own_dequantizers(model: ir.Model) -> None:
    """Give every reader of a DequantizeLinear one that nothing else reads, in place; a model output is a reader too.

    All are of the same integers, and compute the same.

    Args:
        model: a rendered QDQ model.
    """
    namer, outputs = Namer(model), set(model.graph.outputs)
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear":
            continue
        value = node.outputs[0]
        uses = [use for use in value.uses() if use.node.graph is not None]
        for use in uses if value in outputs else uses[1:]:
            again = ir.node(
                node.op_type,
                list(node.inputs),
                attributes=dict(node.attributes),
                name=namer.node(f"{node.name}_again"),
                domain=node.domain,
            )
            describe(again.outputs[0], namer.fresh(f"{value.name}_again"), ir.DataType.FLOAT, value.shape)
            model.graph.insert_after(node, [again])
            use.node.replace_input_with(use.idx, again.outputs[0])
