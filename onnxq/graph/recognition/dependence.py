"""Which inputs of a model, and which nodes, the numbers of a tensor depend on."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.graph.traverse import subgraphs, with_subgraphs

__all__ = ["inputs_behind", "nodes_behind"]

_SIZES = frozenset({"Shape", "Size"})


def inputs_behind(value: ir.Value) -> set[str]:
    """Names of the graph inputs that a tensor is computed from; not those of which only the shape counts."""
    return {value.name for value in _behind(value) if value.is_graph_input() and value.name}


def nodes_behind(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that a tensor is computed by; not those of which only the shape of what they give counts."""
    made = (each.producer() for each in _behind(value))
    yield from dict.fromkeys(node for node in made if node is not None)


def _behind(value: ir.Value) -> Iterator[ir.Value]:
    """A tensor and all that its numbers come from, but for what a node with a body gives to the body itself."""
    stack: list[ir.Value | None] = [value]
    seen: set[ir.Value] = set()
    while stack:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        yield current
        node = current.producer()
        if node is None or (node.op_type in _SIZES and node.domain == ""):
            continue
        stack += node.inputs
        for body in subgraphs(node):
            stack += tuple(body.outputs)
            for graph in with_subgraphs(body):
                seen.update(graph.inputs)  # what the node gives them is among its own inputs
                stack += [v for inner in graph for v in inner.inputs]
