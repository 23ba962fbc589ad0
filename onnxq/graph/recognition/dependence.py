"""Which inputs of a model the numbers of a tensor depend on."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.traverse import subgraphs, with_subgraphs

__all__ = ["inputs_behind"]

_SIZES = frozenset({"Shape", "Size"})


def inputs_behind(value: ir.Value) -> set[str]:
    """Names of the graph inputs that a tensor is computed from; not those of which only the shape counts."""
    found: set[str] = set()
    stack: list[ir.Value | None] = [value]
    seen: set[ir.Value] = set()
    while stack:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        if current.is_graph_input() and current.name:
            found.add(current.name)
        node = current.producer()
        if node is None or (node.op_type in _SIZES and node.domain == ""):
            continue
        stack += node.inputs
        for body in subgraphs(node):
            stack += tuple(body.outputs)
            for graph in with_subgraphs(body):
                seen.update(graph.inputs)  # what the node gives them is among its own inputs
                stack += [v for inner in graph for v in inner.inputs]
    return found
