"""Walks over a model's graphs and nodes, subgraphs included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

__all__ = [
    "all_constants",
    "all_graphs",
    "all_nodes",
    "describe",
    "full_type",
    "subgraphs",
    "with_bodies",
    "with_subgraphs",
]

_HOLDERS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs held by a node's attributes (If, Loop, Scan), in attribute order."""
    for attr in node.attributes.data.values():
        if attr.type in _HOLDERS and not attr.is_ref():
            yield from [attr.as_graph()] if attr.type is ir.AttributeType.GRAPH else attr.as_graphs()


def with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph, then every graph below it, an outer graph always before its inner ones."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(_below([node for node in current if node.attributes.data and _holds_graphs(node)]))


def with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    """A node, and those of the graphs below it."""
    yield node
    for body in subgraphs(node):
        for graph in with_subgraphs(body):
            yield from graph


def all_graphs(model: ir.Model) -> list[ir.Graph]:
    """The main graph, then every subgraph below it; bodies of functions are not visited."""
    return list(with_subgraphs(model.graph))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of the main graph and of every subgraph, in the order of :func:`all_graphs`; each graph walked once."""
    stack = [model.graph]
    while stack:
        holders = []
        for node in stack.pop():
            if node.attributes.data and _holds_graphs(node):  # hot
                holders.append(node)
            yield node
        stack.extend(_below(holders))


def _holds_graphs(node: ir.Node) -> bool:
    """Whether a node has a graph among its attributes."""
    return any(attribute.type in _HOLDERS for attribute in node.attributes.data.values())


def _below(holders: Sequence[ir.Node]) -> list[ir.Graph]:
    """The graphs held by some nodes, the last one first."""
    return [graph for node in reversed(holders) for graph in reversed(list(subgraphs(node)))]


def all_constants(model: ir.Model) -> dict[str, ir.Value]:
    """Initializers of the main graph and of every subgraph by name."""
    return {name: value for graph in all_graphs(model) for name, value in graph.initializers.items()}


def full_type(node: ir.Node) -> str:
    """An operator's type, with its domain in front where that is not the standard's: ``com.microsoft::BiasGelu``."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def describe(node: ir.Node) -> str:
    """A node as error messages name it: ``node 'c1' (Conv)``."""
    op = full_type(node)
    if node.name:
        return f"node '{node.name}' ({op})"
    made = next((f" making '{v.name}'" for v in node.outputs if v.name), "")
    return f"unnamed node ({op}){made}"
