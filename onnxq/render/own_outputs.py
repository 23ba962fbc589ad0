"""A last rewriting of a rendered model: outputs that the model reads itself, apart from what it reads."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.render.wiring import describe

__all__ = ["own_outputs"]


def own_outputs(model: ir.Model) -> None:
    """Give a model output that nodes read too a DequantizeLinear that nothing else reads, in place.

    The nodes read another of the same integers. An output that no DequantizeLinear makes stays as it is.

    Args:
        model: a rendered QDQ model.
    """
    namer = Namer(model)
    for value in list(model.graph.outputs):
        node, readers = value.producer(), [use for use in value.uses() if use.node.graph is not None]
        if node is None or node.op_type != "DequantizeLinear" or not readers:
            continue
        again = ir.node(
            node.op_type,
            list(node.inputs),
            attributes=dict(node.attributes),
            name=namer.node(f"{node.name}_inside"),
            domain=node.domain,
        )
        assert isinstance(node.graph, ir.Graph)
        describe(again.outputs[0], namer.fresh(f"{value.name}_dequantized"), ir.DataType.FLOAT, value.shape)
        node.graph.insert_after(node, [again])
        for use in readers:
            use.node.replace_input_with(use.idx, again.outputs[0])
