"""A model's graphs while outputs are added to them: where each value lives, which names are taken, new small nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import subgraphs

__all__ = ["Workbench"]


class Workbench:
    """The values of a model, subgraphs included.

    Attributes:
        values: by name.
        homes: ``id`` of a value → the graph it lives in.
        parents: ``id`` of a subgraph → the node that holds it.
        ambiguous: names that several values have.
    """

    def __init__(self, model: ir.Model) -> None:
        self.values: dict[str, ir.Value] = {}
        self.homes: dict[int, ir.Graph] = {}
        self.parents: dict[int, ir.Node] = {}
        self.ambiguous: set[str] = set()
        for graph, parent in _graphs(model.graph, None):
            if parent is not None:
                self.parents[id(graph)] = parent
            for value in _values(graph):
                if not value.name:
                    continue
                if value.name in self.values:
                    self.ambiguous.add(value.name)
                else:
                    self.values[value.name] = value
                self.homes[id(value)] = graph
        self._names = set(self.values)

    def depth(self, value: ir.Value) -> int:
        """How many control-flow nodes a value is inside of."""
        graph, depth = self.homes[id(value)], 0
        while (node := self.parents.get(id(graph))) is not None and isinstance(node.graph, ir.Graph):
            graph, depth = node.graph, depth + 1
        return depth

    def copy(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        """A new value of the graph with the same numbers."""
        return self.new_node(graph, "Identity", [value], [], value, "copy", shape=value.shape)

    def flatten(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        """The value as a vector."""
        shape = self._constant(graph, np.array([-1], np.int64), f"{value.name}/flat_shape")
        return self.new_node(graph, "Reshape", [value, shape], [], value, "flat")

    def empty(self, graph: ir.Graph, before: ir.Node | None = None) -> ir.Value:
        """A constant without elements, last in a graph or before a node."""
        return self._constant(graph, np.zeros(0, np.float32), "tap/empty", before)

    def _constant(
        self,
        graph: ir.Graph,
        array: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
        name: str,
        before: ir.Node | None = None,
    ) -> ir.Value:
        attribute = ir.AttrTensor("value", ir.tensor(array))
        node = ir.Node("", "Constant", [], [attribute])
        result = node.outputs[0]
        result.name = self.fresh_name(name)
        node.name = result.name
        result.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        result.shape = ir.Shape(array.shape)
        if before is None:
            graph.append(node)
        else:
            graph.insert_before(before, node)
        self.register(result, graph)
        return result

    def new_node(
        self,
        graph: ir.Graph,
        op_type: str,
        inputs: list[ir.Value],
        attributes: list[ir.Attr],
        like: ir.Value,
        suffix: str,
        shape: ir.Shape | None = None,
    ) -> ir.Value:
        """The output of a new node, last in a graph; float32, named after ``like``."""
        node = ir.Node("", op_type, inputs, attributes)
        result = node.outputs[0]
        result.name = self.fresh_name(f"{like.name}/{suffix}")
        node.name = result.name
        result.type = ir.TensorType(ir.DataType.FLOAT)
        result.shape = shape.copy() if shape is not None else None
        graph.append(node)
        self.register(result, graph)
        return result

    def fresh(self, like: ir.Value, suffix: str) -> ir.Value:
        """A new float32 value, of no graph yet."""
        return ir.Value(name=self.fresh_name(f"{like.name}/{suffix}"), type=ir.TensorType(ir.DataType.FLOAT))

    def fresh_name(self, base: str) -> str:
        """A name that no value has."""
        name, number = base, 2
        while name in self._names:
            name, number = f"{base}_{number}", number + 1
        self._names.add(name)
        return name

    def register(self, value: ir.Value, graph: ir.Graph) -> None:
        """Note in which graph a value lives."""
        if value.name:
            self._names.add(value.name)
            self.values[value.name] = value
        self.homes[id(value)] = graph


def _graphs(graph: ir.Graph, parent: ir.Node | None) -> Iterator[tuple[ir.Graph, ir.Node | None]]:
    """A graph and all those inside it, each with the node that holds it."""
    yield graph, parent
    for node in graph:
        for inner in subgraphs(node):
            yield from _graphs(inner, node)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    seen = {id(value) for value in graph.inputs}
    yield from graph.inputs
    for value in graph.initializers.values():
        if id(value) not in seen:
            yield value
    for node in graph:
        yield from node.outputs
