"""Small edits of graphs that every pass needs, with onnx-ir's traps wrapped once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.traverse import full_type, subgraphs, with_subgraphs
from onnxq.graph.values import STANDS_FOR, AnyArray

__all__ = [
    "remove_nodes",
    "rename_output",
    "replace_by_constant",
    "replace_nodes",
    "replace_value",
    "set_constant",
    "stand_for",
]


def set_constant(graph: ir.Graph, namer: Namer, base: str, array: AnyArray) -> ir.Value:
    """Registers a new initializer holding ``array`` in ``graph`` under a fresh name built on ``base``."""
    name = namer.fresh(base)
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def replace_by_constant(old: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> None:
    """Lets an initializer of ``graph`` take the place, and the name, of a node's output, which is no graph output."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=old.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    replace_value(old, value)
    old.name = None
    graph.register_initializer(value)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Lets every reader of ``old``, which must not be a graph output, read ``new`` instead."""
    for node, index in old.uses():
        node.replace_input_with(index, new)


def rename_output(value: ir.Value, last: ir.Value) -> None:
    """Puts ``value`` in the place of ``last``: its readers, its name, its type and, if it is one, its graph output.

    ``last`` is left without readers and without a name, ready to be removed with its node.
    """
    name = last.name
    value.type = last.type if last.type is not None else value.type
    value.shape = last.shape.copy() if last.shape is not None else value.shape
    value.doc_string = last.doc_string
    if last.metadata_props:
        value.metadata_props.update(last.metadata_props)
    last.replace_all_uses_with(value, replace_graph_outputs=True)
    last.name = None
    value.name = name


def replace_nodes(old: Sequence[ir.Node], *made: ir.Node) -> None:
    """Puts nodes in the place of others, both in their order: the last one's output in that of the last one's first.

    Args:
        old: are removed; nothing else may read what those before the last write.
        made: are put in front of the last of them.
    """
    last = old[-1]
    assert isinstance(last.graph, ir.Graph)
    last.graph.insert_before(last, made)
    rename_output(made[-1].outputs[0], last.outputs[0])
    remove_nodes(reversed(old))


def stand_for(node: ir.Node, former: Sequence[ir.Node]) -> None:
    """Let patterns that name any of some nodes, their types or what they write, name a node that took their place."""
    names: list[str | None] = []
    for old in former:
        names += [old.name, old.op_type, full_type(old)]
        names += [*(value.name for value in old.outputs), *old.meta.get(STANDS_FOR, ())]
    node.meta[STANDS_FOR] = tuple(dict.fromkeys(name for name in names if name))


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Removes nodes from their graphs; they, and those in subgraphs of theirs, read nothing then.

    Args:
        nodes: nothing else may read their outputs.
    """
    by_graph: dict[int, tuple[ir.Graph, list[ir.Node]]] = {}
    for node in nodes:
        for inner in (n for sub in subgraphs(node) for graph in with_subgraphs(sub) for n in graph):
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)
        graph = node.graph
        if graph is not None:
            by_graph.setdefault(id(graph), (graph, []))[1].append(node)
    for graph, members in by_graph.values():
        graph.remove(members, safe=True)
