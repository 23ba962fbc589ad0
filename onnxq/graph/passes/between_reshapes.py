"""A node that computes on its tensors in other shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.values import SAME_NUMBERS

__all__ = ["between_reshapes"]


def between_reshapes(
    node: ir.Node, given: Sequence[Sequence[int] | None], result: Sequence[int], after: Sequence[int], namer: Namer
) -> None:
    """Put a node of the same name and attributes in the place of one, with Reshape nodes before and behind it.

    What a Reshape gives that reads the wanted sizes is read in front of that one, which goes if nothing else reads it.

    Args:
        node: has one output, which keeps its name.
        given: the sizes in which it reads each of its inputs, None for one that it reads as it is. A size that is not
            known is -1, here and below.
        result: the sizes that it writes then.
        after: the sizes of what it wrote before.
        namer: of the model.
    """
    old, graph = node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph)

    def read(value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        maker = value.producer()
        source = maker.inputs[0] if maker is not None and maker.op_type == "Reshape" and maker.domain == "" else None
        same = source is not None and source.shape == _shape(sizes)
        return source if source is not None and same else reshaped(value, sizes, f"{value.name}_flat")

    def reshaped(value: ir.Value, sizes: Sequence[int], stem: str) -> ir.Value:
        shape = set_constant(graph, namer, f"{stem}_sizes", np.asarray(sizes, np.int64))
        reshape = ir.node("Reshape", [value, shape], name=namer.node(f"{stem}_Reshape"))
        made = reshape.outputs[0]
        made.name, made.type, made.shape = namer.fresh(stem), value.type, _shape(sizes)
        graph.insert_before(node, [reshape])
        return made

    inputs = [
        value if value is None or sizes is None else read(value, sizes)
        for value, sizes in zip(node.inputs, given, strict=True)
    ]
    made = ir.node(node.op_type, inputs, attributes=dict(node.attributes), name=node.name)
    flat = made.outputs[0]
    flat.name, flat.type, flat.shape = namer.fresh(f"{old.name}_flat"), old.type, _shape(result)
    flat.meta[SAME_NUMBERS] = old.name
    graph.insert_before(node, [made])
    rename_output(reshaped(flat, after, f"{old.name}_deep"), old)
    makers = dict.fromkeys(value.producer() for value in node.inputs if value is not None)
    remove_nodes([node])
    remove_nodes(maker for maker in makers if maker is not None and _is_unread(maker))


def _is_unread(node: ir.Node) -> bool:
    value = node.outputs[0]
    return node.op_type == "Reshape" and not value.uses() and not value.is_graph_output()


def _shape(sizes: Sequence[int]) -> ir.Shape:
    return ir.Shape([None if size < 0 else size for size in sizes])
