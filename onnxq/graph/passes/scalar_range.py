"""Vectors of one element that a Range reads become the scalars that ONNX asks for.

Runtimes take such vectors where they come from a computation, and refuse them once it is known to be constant, as in
the function body of AffineGrid. Exact.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import rank_of

__all__ = ["scalar_ranges"]


def scalar_ranges(model: ir.Model) -> list[Note]:
    """Put a Squeeze before every input of a Range that is a vector.

    Args:
        model: changed in place; shapes are inferred.

    Returns:
        A note if anything was done.
    """
    namer = Namer(model)
    count = 0
    for graph in all_graphs(model):
        for node in list(graph):
            if node.op_type != "Range" or node.domain != "":
                continue
            for position, value in enumerate(node.inputs):
                if value is None or rank_of(value) != 1:
                    continue
                squeeze = ir.Node("", "Squeeze", [value], name=namer.node(f"{node.name}_scalar"))
                scalar = squeeze.outputs[0]
                scalar.name = namer.fresh(f"{value.name}_scalar")
                scalar.type, scalar.shape = value.type, ir.Shape([])
                graph.insert_before(node, squeeze)
                node.replace_input_with(position, scalar)
                count += 1
    return [Note("scalar_range", "", f"{count} inputs of Range made scalars")] if count else []
