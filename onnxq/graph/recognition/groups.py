"""Groups of nodes that compute one known function, recognised and left as they are."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxq.graph.recognition.pattern_activation import match_activation
from onnxq.graph.recognition.pattern_normalization import match_normalization
from onnxq.graph.traverse import all_graphs

__all__ = ["KINDS", "Group", "find_groups"]

KINDS = ("gelu", "silu", "hardswish", "mish", "layernorm", "rmsnorm", "softmax", "logsoftmax")
"""What a group can be. ``gelu`` covers the erf form, the tanh form and x·sigmoid(1.702 x)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that together compute one function of one tensor.

    Attributes:
        kind: one of :data:`KINDS`.
        nodes: in order.
        inputs: the tensor it is a function of.
        outputs: the tensor it makes.
    """

    kind: str
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def find_groups(model: ir.Model) -> list[Group]:
    """Finds activation functions, normalizations and softmaxes that are written as chains of simple operators.

    A node is in one group at most, and nothing outside a group reads a tensor inside it. The time
    grows with the number of nodes only.

    Args:
        model: left as it is; constants folded and ranks inferred, as after ``normalize``.

    Returns:
        The groups, in the order of their first nodes, the main graph's before those of subgraphs. What puts others in
        their place starts with the last, since one may read what another makes.
    """
    groups: list[Group] = []
    for graph in all_graphs(model):
        position = {node: index for index, node in enumerate(graph)}
        taken: set[ir.Node] = set()
        here: list[Group] = []
        for matcher in (match_normalization, match_activation):
            for node in position:
                found = matcher(node, position, taken)
                if found is None:
                    continue
                kind, members, start, end = found
                nodes = tuple(sorted(members, key=position.__getitem__))
                taken.update(nodes)
                here.append(Group(kind, nodes, (start,), (end,)))
        groups += sorted(here, key=lambda group: position[group.nodes[0]])
    return groups
