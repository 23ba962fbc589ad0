"""The order of nodes: what makes a tensor comes before what reads it."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.traverse import subgraphs

__all__ = ["sort_nodes"]


def sort_nodes(graph: ir.Graph) -> None:
    """Sorts a graph and those inside it, in place; what is sorted already stays as it is, and is only looked through.

    Raises:
        ValueError: there is a cycle.
    """
    if not _is_sorted(graph):
        graph.sort()


def _is_sorted(graph: ir.Graph) -> bool:
    """Whether each node stands behind what makes its inputs; False also of a graph with others inside it."""
    passed: set[ir.Node | None] = {None}
    for node in graph:
        if any(value is not None and value.producer() not in passed for value in node.inputs):
            return False
        if any(True for _ in subgraphs(node)):
            return False
        passed.add(node)
    return True
