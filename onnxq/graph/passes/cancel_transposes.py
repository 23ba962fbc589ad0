"""Transposes that undo each other, with nothing between that minds the order of axes, are taken out.

Converters from frameworks that keep channels last write a Transpose before and behind every convolution, with biases,
batch normalizations as arithmetic, activations and residual additions between them, out of the reach of the layer that
they belong to. Where all of a region can compute on the tensors as they are in front of the Transposes, it does, and
those behind it fall away with them. Exact: the same numbers in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, replace_value, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.permuted import can_permute, keeps_order, permute
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import rank_of

__all__ = ["cancel_transposes"]

Perm = tuple[int, ...]


def cancel_transposes(model: ir.Model) -> list[Note]:
    """Take out Transposes whose order nothing between them needs.

    Args:
        model: changed in place; constants must be folded and ranks known. Nodes keep their names; a tensor whose order
            is another now has a new one, and graph outputs keep theirs.

    Returns:
        A note of how many Transposes there are fewer, if any.
    """
    opset = model.opset_imports.get("", 0)
    namer = Namer(model)
    before = _count(model)
    for graph in all_graphs(model):
        while _sweep(graph, opset, namer):
            pass
    after = _count(model)
    return [Note("cancel_transposes", "", f"{before - after} Transpose nodes fewer")] if after < before else []


def _sweep(graph: ir.Graph, opset: int, namer: Namer) -> bool:
    """Rewrite regions that gain by it, whether there was one; next to one that was rewritten, others may be others."""
    touched: set[ir.Node] = set()
    for region, around in [(region, region.around()) for region in _regions(graph, opset)]:
        if touched.isdisjoint(around) and region.gain() > 0:
            region.rewrite(namer)
            touched |= around
    return bool(touched)


def _count(model: ir.Model) -> int:
    return sum(node.op_type == "Transpose" for graph in all_graphs(model) for node in graph)


def _perm(node: ir.Node) -> Perm | None:
    """The order a Transpose gives, where it is written and the rank known."""
    if node.op_type != "Transpose" or node.domain != "" or node.inputs[0] is None:
        return None
    perm = tuple(node.attributes.get_ints("perm", []))
    return perm if perm and rank_of(node.outputs[0]) == len(perm) else None


def _regions(graph: ir.Graph, opset: int) -> Iterator[_Region]:
    """Regions between Transposes of one order, each with all that hangs together."""
    perms = {perm for node in graph if (perm := _perm(node)) is not None}
    for perm in sorted(perms):
        yield from _connected(graph, *_agnostic(graph, perm, opset), perm)


def _agnostic(graph: ir.Graph, perm: Perm, opset: int) -> tuple[list[ir.Node], list[ir.Node]]:
    """Transposes of an order, and the nodes behind them that can compute in the order before them.

    A Transpose of what such a node writes is not the first of another region: its input may change.
    """
    ordered: set[ir.Value | None] = set()
    entries: list[ir.Node] = []
    nodes: list[ir.Node] = []
    for node in graph:  # in topological order: what it reads was decided on
        if _perm(node) == perm and node.inputs[0] not in ordered:
            entries.append(node)
            ordered.add(node.outputs[0])
        elif _perm(node) is None and can_permute(node, perm, ordered.__contains__, opset):
            nodes.append(node)
            if keeps_order(node):
                ordered.update(node.outputs)
    return entries, nodes


def _connected(graph: ir.Graph, entries: Sequence[ir.Node], nodes: Sequence[ir.Node], perm: Perm) -> list[_Region]:
    """Entries and nodes by tensors in common."""
    leader: dict[ir.Node, ir.Node] = {node: node for node in (*entries, *nodes)}

    def first(node: ir.Node) -> ir.Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in nodes:
        for value in node.inputs:
            maker = value.producer() if value is not None else None
            if maker is not None and maker in leader:
                leader[first(node)] = first(maker)
    regions: dict[ir.Node, _Region] = {}
    for node in leader:
        region = regions.setdefault(first(node), _Region(graph, perm))
        (region.nodes if _perm(node) is None else region.entries).append(node)
    return list(regions.values())


class _Region:
    """Transposes of one order, and the nodes behind them that can do without."""

    def __init__(self, graph: ir.Graph, perm: Perm) -> None:
        self.graph, self.perm = graph, perm
        self.entries: list[ir.Node] = []
        self.nodes: list[ir.Node] = []

    def around(self) -> set[ir.Node]:
        """All that changes with it: its nodes, what the first of them read, and what reads any."""
        made = (entry.inputs[0].producer() for entry in self.entries if entry.inputs[0] is not None)
        members = (*self.entries, *self.nodes)
        read = (use.node for node in members for value in node.outputs for use in value.uses())
        return {*members, *read, *(node for node in made if node is not None)}

    def gain(self) -> int:
        """Elements that are transposed no more, less those that are transposed instead."""
        inside = set(self.nodes)
        gained = 0
        for entry in self.entries:
            if not self._needed(entry.outputs[0], inside):
                gained += _elements(entry.outputs[0])
        for value in (*(entry.outputs[0] for entry in self.entries), *self._values()):
            gained += sum(_elements(use.node.outputs[0]) for use in value.uses() if self._undoes(use.node))
        for value in self._values():
            if self._needed(value, inside):
                gained -= _elements(value)
        return gained

    def rewrite(self, namer: Namer) -> None:
        """Compute in the order before the entries."""
        inside, values = set(self.nodes), list(self._values())
        heads = [entry.outputs[0] for entry in self.entries]
        followers = dict.fromkeys(
            use.node for value in (*heads, *values) for use in value.uses() if self._follows(use.node)
        )
        ordered: set[ir.Value] = set(values)
        for entry in self.entries:
            source = entry.inputs[0]
            assert source is not None
            ordered.add(source)
            for node, index in list(entry.outputs[0].uses()):
                if node in inside or node in followers:
                    node.replace_input_with(index, source)
        outside = {value: self._others(value, inside) for value in values if self._needed(value, inside)}
        for node in self.nodes:
            permute(node, self.perm, ordered.__contains__, self.graph, namer)
        for value in values:
            self._reorder(value, outside.get(value), namer)
        for node in followers:
            own = _perm(node)
            assert own is not None
            node.attributes["perm"] = ir.AttrInt64s("perm", [self.perm[axis] for axis in own])
        for node in [node for node in followers if _does_nothing(node)]:
            self._without(node)
        unread = [e for e in self.entries if not e.outputs[0].uses() and not e.outputs[0].is_graph_output()]
        remove_nodes(unread)

    def _without(self, node: ir.Node) -> None:
        """Take out a Transpose that does nothing, unless it gives an output another name."""
        source, behind = node.inputs[0], node.outputs[0]
        assert source is not None
        if behind.is_graph_output():
            maker = source.producer()
            if source.is_graph_output() or maker is None or maker.graph is not self.graph:
                return
            rename_output(source, behind)
        else:
            replace_value(behind, source)
        remove_nodes([node])

    def _values(self) -> Iterator[ir.Value]:
        """What the nodes write in the order of what they read."""
        return (value for node in self.nodes if keeps_order(node) for value in node.outputs)

    def _needed(self, value: ir.Value, inside: set[ir.Node]) -> bool:
        """Whether someone needs the order of a tensor: a reader, or who takes the graph's output."""
        return value.is_graph_output() or bool(self._others(value, inside))

    def _others(self, value: ir.Value, inside: set[ir.Node]) -> list[tuple[ir.Node, int]]:
        """Readers of a tensor that need its order, with the input that it is."""
        return [(use.node, use.idx) for use in value.uses() if use.node not in inside and not self._follows(use.node)]

    def _follows(self, node: ir.Node) -> bool:
        return _perm(node) is not None and node.graph is self.graph

    def _undoes(self, node: ir.Node) -> bool:
        own = _perm(node)
        return own is not None and self._follows(node) and _sorted(tuple(self.perm[axis] for axis in own))

    def _reorder(self, value: ir.Value, readers: Sequence[tuple[ir.Node, int]] | None, namer: Namer) -> None:
        """Give a tensor its new shape and a new name.

        Args:
            value: the tensor.
            readers: who reads it behind a Transpose, which then has its former name; None where it needs none.
            namer: names it.
        """
        old, shape, maker = value.name or "", value.shape, value.producer()
        assert shape is not None and maker is not None
        stand_for(maker, [maker])  # patterns may have named it by what it wrote
        value.name = namer.fresh(f"{old}_permuted")
        dims = [dim for _, dim in sorted(zip(self.perm, shape, strict=True), key=lambda pair: pair[0])]
        value.shape = ir.Shape(dims)
        if readers is None:
            return
        made = ir.node("Transpose", [value], {"perm": list(self.perm)}, name=namer.node(f"{old}_Transpose"))
        behind = made.outputs[0]
        behind.name, behind.type, behind.shape = old, value.type, shape
        self.graph.insert_after(maker, [made])
        for node, index in readers:
            node.replace_input_with(index, behind)
        for position, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[position] = behind


def _does_nothing(node: ir.Node) -> bool:
    perm = _perm(node)
    return perm is not None and _sorted(perm)


def _sorted(perm: Perm) -> bool:
    return perm == tuple(range(len(perm)))


def _elements(value: ir.Value) -> int:
    """Number of elements; unknown dimensions count 1."""
    shape = value.shape
    return math.prod(dim for dim in shape if isinstance(dim, int)) if shape is not None else 1
