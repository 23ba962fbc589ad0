"""Where what a layer gives is added to another tensor: the end of a branch beside a skip connection.

The layer's weight and bias can make up for a part of the error that quantizing has brought into that tensor: the sum is
to come close to the float model's, not the layer's own output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, depends_on
from onnxq.graph.values import is_constant
from onnxq.plan import Edge

__all__ = ["Join", "joins_of"]


@dataclass(frozen=True, slots=True)
class Join:
    """What is added to a layer's output.

    Attributes:
        tensor: its name.
        edge: where the Add reads it.
    """

    tensor: str
    edge: Edge


def joins_of(draft: Draft, layers: Sequence[QuantizedLayer]) -> dict[str, Join]:
    """What is added to the outputs of layers of the main graph, by name of the layer.

    Left out is what will change once more: what comes later in the graph than the layer, or depends on one of them.

    Args:
        draft: the layers are of its model.
        layers: those that are worked on together.
    """
    graph = draft.model.graph
    position = {node: at for at, node in enumerate(graph)}
    working = {layer.node for layer in layers}
    found = {}
    for layer in layers:
        use = _added(layer)
        if use is None or layer.node not in position:
            continue
        add, index = use
        other = add.inputs[index]
        assert other is not None
        maker = other.producer()
        behind = maker is not None and position.get(maker, len(position)) > position[layer.node]
        if not behind and not depends_on(other, working):
            found[layer.name] = Join(other.name or "", Edge(add.name or "", index))
    return found


def _added(layer: QuantizedLayer) -> tuple[ir.Node, int] | None:
    """The Add that alone reads a layer's output, and which of its inputs is the other one; not its bias."""
    value = layer.node.outputs[0]
    if layer.node.op_type == "MatMul" and layer.bias is not None:
        value = next(iter(value.uses())).node.outputs[0]
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.op_type != "Add" or uses[0].node.domain != "":
        return None
    index = 1 - uses[0].idx
    other = uses[0].node.inputs[index]
    return None if other is None or is_constant(other) else (uses[0].node, index)
