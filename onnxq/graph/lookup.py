"""A model's nodes and tensors by name, for changes that are found in one copy of it and made in another."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes

__all__ = ["Lookup"]


class Lookup:
    """What changes need to know of a whole model, found once for all of them.

    Args:
        model: normalized. Nodes and tensors that are added later are not found; their names come from ``namer``.

    Attributes:
        model: the model.
        namer: names what changes add.
        nodes: nodes by name, those of subgraphs too.
        made: tensors that nodes make, by name.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.namer = Namer(model)
        self.nodes = {node.name: node for node in all_nodes(model) if node.name}
        self.made = {value.name: value for node in self.nodes.values() for value in node.outputs if value.name}
