"""Names that are unique over a whole model, its subgraphs included, so that a tensor's name can serve as its key."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs

__all__ = ["Namer", "unique_names"]


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs


class _Pool:
    """A set of taken names that hands out free ones without searching twice."""

    def __init__(self) -> None:
        self.taken: set[str | None] = set()
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        name = base
        if not name or name in self.taken:
            count = self._next.get(base, 1)
            name = f"{base}_{count}"
            while name in self.taken:
                count += 1
                name = f"{base}_{count}"
            self._next[base] = count + 1
        self.taken.add(name)
        return name


class Namer:
    """Hands out names that nothing in the model bears, in any of its graphs.

    Args:
        model: the model whose names are taken, as they are when it is first asked. Names given to it behind the namer's
            back from then on are not seen.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._pools: tuple[_Pool, _Pool] | None = None

    def fresh(self, base: str) -> str:
        """A new tensor name: ``base`` itself when it is free, else ``base_1``, ``base_2`` …"""
        return self._taken()[0].fresh(base)

    def node(self, base: str) -> str:
        """A new node name, in the same way."""
        return self._taken()[1].fresh(base)

    def _taken(self) -> tuple[_Pool, _Pool]:
        """Names of tensors and of nodes; most passes begin with a namer, and seldom add something."""
        if self._pools is None:
            self._pools = _Pool(), _Pool()
            values, nodes = (pool.taken for pool in self._pools)
            for graph in all_graphs(self._model):
                values.update(graph.initializers)
                values.update([value.name for value in (*graph.inputs, *graph.outputs)])
                for node in graph:
                    nodes.add(node.name)
                    for value in node.outputs:
                        values.add(value.name)
        return self._pools


def unique_names(model: ir.Model) -> list[Note]:
    """Makes tensor names unique over the whole model and gives every node a unique, non-empty name.

    Inputs and outputs of the main graph always keep their names, and so does whoever comes first, outer graphs before
    inner ones. Unused optional outputs keep their empty name. No name is cleaned: blanks, quotes, slashes and
    characters of any script stay as they are.

    Returns:
        A note for every tensor that had to be renamed.
    """
    notes: list[Note] = []
    namer = Namer(model)
    pool, node_pool = _Pool(), _Pool()
    seen: set[ir.Value] = set()
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name:
            pool.taken.add(value.name)
        seen.add(value)
    for graph in all_graphs(model):
        for value in _values(graph):
            if value in seen:
                continue
            seen.add(value)
            if value.name and value.name not in pool.taken:
                pool.taken.add(value.name)
            elif value.name or value.uses() or value.is_graph_output() or value.is_graph_input():
                old = value.name
                value.name = namer.fresh(old or "tensor")
                pool.taken.add(value.name)
                if old:
                    notes.append(Note("names", value.name, f"another tensor is also called '{old}': renamed"))
            else:
                value.name = ""
        for node in graph:
            if node.name and node.name not in node_pool.taken:
                node_pool.taken.add(node.name)
            else:
                node.name = namer.node(node.name or node.op_type)
                node_pool.taken.add(node.name)
    return notes
