"""Is the graph sound: every name defined, once, before its use, without cycles?"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.traverse import describe, subgraphs, with_subgraphs

__all__ = ["check_definitions", "check_structure", "sort"]


def check_definitions(graph: onnx.GraphProto) -> None:
    """Checks in the protobuf, where it can still be seen, that each graph defines each name once.

    Raises:
        ModelError: two inputs, two initializers, two node outputs, or an input and a node output share a name.
    """
    stack = [graph]
    while stack:
        current = stack.pop()
        seen: dict[str, str] = {}

        def define(name: str, what: str, seen: dict[str, str] = seen) -> None:
            if name in seen:
                raise ModelError(
                    f"'{name}' is defined twice, by {seen[name]} and by {what}",
                    where="invalid model",
                    hint="Export the model again, or rename one of the two",
                )
            seen[name] = what

        for info in current.input:
            define(info.name, "a graph input")
        inputs = set(seen)
        for names in ([t.name for t in current.initializer], [t.values.name for t in current.sparse_initializer]):
            for name in names:
                if name in inputs:
                    inputs.discard(name)  # an input may have one default
                    continue
                define(name, "an initializer")
        for node in current.node:
            for name in node.output:
                if name:
                    define(name, f"node '{node.name}' ({node.op_type})")
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def _undefined(node: ir.Node, value: ir.Value) -> ModelError:
    return ModelError(
        f"reads '{value.name}', which nothing in its scope defines",
        where=f"invalid model: {describe(node)}",
        hint="Export the model again; a tool that edited it may have removed a node too many",
    )


def _is_sorted(graph: ir.Graph) -> bool:
    """Whether every node of a graph and its subgraphs comes after the nodes it reads from.

    Raises:
        ModelError: a node, or a graph output, reads a value that its scope does not define.
    """
    defined: set[ir.Value] = set()
    scope: set[ir.Graph] = set()
    in_order = True

    def visible(value: ir.Value) -> bool:
        # A value defined further down is a matter of order; one of no enclosing graph does not exist here.
        producer = value.producer()
        return producer is not None and producer.graph in scope

    def visit(current: ir.Graph) -> None:
        nonlocal in_order
        scope.add(current)
        here: list[ir.Value] = [*current.inputs, *current.initializers.values()]
        defined.update(here)
        for node in current:
            for value in node.inputs:
                if value is not None and value not in defined:
                    if not visible(value):
                        raise _undefined(node, value)
                    in_order = False
            for inner in subgraphs(node):
                visit(inner)
            here.extend(node.outputs)
            defined.update(node.outputs)
        for value in current.outputs:
            owned = value in current.inputs or value.is_initializer() or value.producer() is not None
            if not owned or (value not in defined and not visible(value)):
                raise ModelError(
                    f"graph output '{value.name}' is made by no node",
                    where=f"invalid model: graph '{current.name}'",
                    hint="Export the model again, or add an Identity node that makes it",
                )
        defined.difference_update(here)
        scope.discard(current)

    visit(graph)
    return in_order


def _find_cycle(graph: ir.Graph) -> list[ir.Node]:
    """The nodes of one cycle of a graph that has one (subgraph reads count for the node that holds the subgraph)."""

    def before(node: ir.Node) -> Iterable[ir.Node]:
        readers = [node, *(n for sub in subgraphs(node) for g in with_subgraphs(sub) for n in g)]
        for reader in readers:
            for value in reader.inputs:
                producer = value.producer() if value is not None else None
                if producer is not None and producer.graph is node.graph:
                    yield producer

    done: set[ir.Node] = set()
    for root in graph:
        path: dict[ir.Node, Iterable[ir.Node]] = {}
        stack = [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            iterator = path.setdefault(node, iter(list(before(node))))
            following = next(iter(iterator), None)
            if following is None:
                done.add(node)
                path.pop(node)
                stack.pop()
            elif following in path:
                chain = list(path)
                return chain[chain.index(following) :]
            elif following not in done:
                stack.append(following)
    return []


def sort(graph: ir.Graph) -> None:
    """Sorts the nodes of a graph and of its subgraphs so that each comes after what it reads.

    Raises:
        ModelError: there is a cycle; the message names nodes on it.
    """
    try:
        graph.sort()
    except ValueError as error:
        cycles = (cycle for current in with_subgraphs(graph) if (cycle := _find_cycle(current)))
        cycle = next(cycles, [])
        names = ", ".join(describe(node) for node in cycle[:4]) + (" …" if len(cycle) > 4 else "")
        raise ModelError(
            f"the graph has a cycle through {names}" if cycle else "the graph has a cycle", where="invalid model"
        ) from error


def check_structure(model: ir.Model) -> bool:
    """Checks that a model's graphs are sound.

    Returns:
        Whether the nodes are in order; if not, they can be sorted.

    Raises:
        ModelError: an undefined name, inputs of one name, or no outputs.
    """
    graph = model.graph
    if not graph.outputs:
        raise ModelError("the graph has no outputs, so nothing can be computed", where="invalid model")
    names = [value.name for value in graph.inputs]
    for name in names:
        if not name or names.count(name) > 1:
            raise ModelError(
                f"graph inputs need names of their own, found '{name}' twice or empty", where="invalid model"
            )
    in_order = _is_sorted(graph)
    for function in model.functions.values():
        in_order = _is_sorted(function.graph) and in_order
    return in_order
