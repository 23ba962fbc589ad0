"""Pieces of a model that run in integers, and that would take next to no more time in float.

Such is an Add or a Concat between two layers, and a head: a small multiply-accumulate whose output only float
arithmetic reads, as the layer that gives the scores of classes. Where one class has far larger scores than the others,
8 bits leave these few steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.deciding.relief import Piece
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.planning.conversions import entering, leaving
from onnxq.planning.placement import elements
from onnxq.planning.sites import REORDERINGS
from onnxq.planning.table_rows import row

__all__ = ["cheap_in_float"]

_SHARE = 0.01
"""Of the cost in float of what is quantized, that all pieces together may cost: 3 % of what integers take, where they
take a third of that."""


def cheap_in_float(
    model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int], budget: float, *, heads: bool = True
) -> list[Piece]:
    """Pieces of the model that would take next to no more time in float.

    Neighbours make one piece, so that no conversions stand between them; each node is one where that is too dear.

    Args:
        model: the float model.
        plan: where it is quantized.
        backend: has the table of costs.
        sizes: tensor name → number of elements, where it is known.
        budget: cost of what is quantized, in the unit of the table; the pieces together cost at most 1 % of it.
        heads: whether layers count: not where all of them are to be quantized.

    Returns:
        Names of nodes, the cheapest pieces first.
    """
    small = _Small(model, plan, backend, sizes, heads=heads)
    priced: list[tuple[float, Piece]] = []
    for found in small.neighbours():
        price = small.price(found)
        if price <= _SHARE * budget or len(found) == 1:
            priced.append((price, tuple(n.name or "" for n in found)))
        else:
            priced += [(small.price([n]), (n.name or "",)) for n in found if n.op_type not in REORDERINGS]
    room, chosen = _SHARE * budget, []
    for price, piece in sorted(priced, key=lambda pair: pair[0]):
        if price <= room:
            room -= price
            chosen.append(piece)
    return chosen


class _Small:
    """Quantized nodes that are no multiply-accumulates, and heads."""

    def __init__(self, model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int], *, heads: bool) -> None:
        self._plan, self._backend, self._sizes = plan, backend, sizes
        self._rules: dict[ir.Node, OpRule] = {}
        self._behind: dict[ir.Node, ir.Node] = {}
        """Activation functions that are computed together with a node."""
        by_name = {node.name: node for node in all_nodes(model)}
        for node in by_name.values():
            rule = row(backend, node) if node.name in plan.quantized else None
            if rule is not None and rule.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT):
                self._rules[node] = rule
        for function, producer in plan.absorbed.items():
            self._behind[by_name[producer]] = by_name[function]
        layers = by_name.values() if heads else ()
        self._heads = {n: rule for n in layers if (rule := self._head(n)) is not None}
        self._rules.update(self._heads)
        self._in_front = self._in_front_of_dear()

    def _in_front_of_dear(self) -> set[ir.Node]:
        """Nodes that :meth:`_elsewhere` may find a cost behind: of most models none, and it need not look."""
        makers = {value: node for node in self._rules for value in self._outputs(node)}
        found: set[ir.Node] = set()
        stack = [node for node, rule in self._rules.items() if rule.cost_behind]
        while stack:
            for value in stack.pop().inputs:
                maker = makers.get(value) if value is not None else None
                if maker is not None and maker not in found:
                    found.add(maker)
                    stack += [maker] if self._rules[maker].kind is Kind.ELEMENTWISE else []
        return found

    def _head(self, node: ir.Node) -> OpRule | None:
        """The row of a quantized multiply-accumulate that no integers read."""
        rule = row(self._backend, node) if node.name in self._plan.quantized else None
        if rule is None or rule.kind is not Kind.COMPUTE:
            return None
        stack = self._outputs(node)
        while stack:
            for use in stack.pop().uses():
                if use.node.name in self._plan.quantized:
                    if use.node.op_type not in REORDERINGS:
                        return None
                    stack += use.node.outputs
        return rule

    def neighbours(self) -> list[list[ir.Node]]:
        """Nodes that read from one another, each time all of them; none that only reorder. A head has none in front."""
        seen: set[ir.Node] = set()
        found = []
        for start in self._rules:
            together, stack = [], [start]
            while stack:
                node = stack.pop()
                if node in seen or node not in self._rules:
                    continue
                seen.add(node)
                together.append(node)
                readers = [use.node for value in self._outputs(node) for use in value.uses()]
                stack += [reader for reader in readers if reader not in self._heads]
                if node not in self._heads:
                    stack += [maker for value in node.inputs if (maker := self._maker(value)) is not None]
            if any(node.op_type not in REORDERINGS for node in together):
                found.append(together)
        return found

    def price(self, piece: Iterable[ir.Node]) -> float:
        """What a piece costs in float beyond what it costs now, at most: the placement may find a better way."""
        inside, backend = set(piece), self._backend
        total = 0.0
        for node in inside:
            as_float, as_integer = self._rules[node].costs(node, self._size(node.outputs[0]))
            total += as_float - as_integer
            function = self._behind.get(node)
            rule = row(backend, function) if function is not None else None
            if function is not None and rule is not None:
                total += rule.costs(function, self._size(function.outputs[0]))[0]
            for value in node.inputs:
                maker = self._maker(value)
                if value is not None and maker not in inside and maker and maker.name in self._plan.quantized:
                    total += leaving(backend, value, self._size(value))
            total += self._elsewhere(node, inside)
            for value in self._outputs(node):
                if any(use.node not in inside and use.node.name in self._plan.quantized for use in value.uses()):
                    size = self._size(value)
                    total += entering(backend, value, size) + self._rules[node].cost_behind * size
        return max(total, 0.0)

    def _elsewhere(self, node: ir.Node, inside: Collection[ir.Node]) -> float:
        """What it costs nodes behind one in float whose integer kernel is only fast in the layout of convolutions."""
        total = 0.0
        stack, seen = [node] if node in self._in_front else [], {node}
        while stack:
            for value in self._outputs(stack.pop()):
                for reader in dict.fromkeys(use.node for use in value.uses()):
                    rule = self._rules.get(reader)
                    if rule is None or reader in inside or reader in seen:
                        continue
                    seen.add(reader)
                    total += rule.cost_behind * self._size(reader.outputs[0])
                    stack += [reader] if rule.kind is Kind.ELEMENTWISE else []
        return total

    def _outputs(self, node: ir.Node) -> list[ir.Value]:
        return [self._behind.get(node, node).outputs[0], *node.outputs[1:]]

    def _maker(self, value: ir.Value | None) -> ir.Node | None:
        """The node that gives a tensor; for an absorbed activation function the one that it is computed with."""
        maker = value.producer() if value is not None else None
        if maker is not None and maker.name in self._plan.absorbed and maker.inputs[0] is not None:
            return maker.inputs[0].producer()
        return maker

    def _size(self, value: ir.Value) -> int:
        return self._sizes.get(value.name or "") or elements(value)
