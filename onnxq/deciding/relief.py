"""Arithmetic that runs in integers for its neighbours' sake alone, and costs much of the result: it stays float where
that takes next to no time.

Such is an Add or a Concat between two layers: one scale for all it gives may drown a part that float arithmetic behind
it brings back to size (one row of a tensor in front of a LayerNormalization, say), which the tensor as a whole does not
show. So it is measured at the outputs, first with all of it float that comes cheap, then piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.deciding.rescue import GROUPS, groups
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.planning.placement import elements
from onnxq.planning.sites import REORDERINGS
from onnxq.planning.table_rows import row

__all__ = ["AMPLIFIED", "CHEAP", "FINE", "NARROW", "TIED", "cheap_in_float", "costly_in_integers", "stored_together"]

FINE = 40.0
"""dB: where every output has as much, nothing is looked for."""
_LEAST_GAIN = 3.0
"""dB that an output must gain."""
_MOST_LOST = 1.0
"""dB that another may lose."""
_AUDIBLE = 0.1
"""Of the noise that stays, or of that of 40 dB, from which on a piece's own counts."""
_SHARE = 0.02
"""Of the cost of what is quantized, that all pieces together may cost."""

AMPLIFIED = "float arithmetic after it amplifies what its integers leave: {}"
CHEAP = "its integers leave {}, and it costs almost nothing extra in float"
NARROW = "8 bits leave {}"
TIED = "one scale for all that it reads leaves {}"

Piece = tuple[str, ...]


def cheap_in_float(
    model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int], budget: float
) -> list[Piece]:
    """Pieces of the model that are no matrix products, and that would take next to no more time in float.

    Neighbours make one piece, so that no conversions stand between them; each node is one where that is too dear.

    Args:
        model: the float model.
        plan: where it is quantized.
        backend: has the table of costs.
        sizes: tensor name → number of elements, where it is known.
        budget: cost of what is quantized, in the unit of the table; the pieces together cost at most 2 % of it.

    Returns:
        Names of nodes, the cheapest pieces first.
    """
    small = _Small(model, plan, backend, sizes)
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


def stored_together(plan: Plan) -> list[Piece]:
    """Float layers whose weights are stored as integers, in the order of the plan; layers that share one together."""
    together = {name: {name: None} for name in plan.stored}
    for site in plan.sites:
        names = [edge.node for edge in site.readers if site.role == "weight" and edge.node in together]
        for name in names[1:]:
            together[names[0]].update(together[name])
            together.update(dict.fromkeys(together[name], together[names[0]]))
    return list(dict.fromkeys(tuple(piece) for piece in together.values()))


class _Small:
    """Quantized nodes that are no multiply-accumulates."""

    def __init__(self, model: ir.Model, plan: Plan, backend: Backend, sizes: Mapping[str, int]) -> None:
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

    def neighbours(self) -> list[list[ir.Node]]:
        """Nodes that read from one another, each time all of them; none that only reorder."""
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
                stack += [use.node for value in self._outputs(node) for use in value.uses()]
                stack += [maker for value in node.inputs if (maker := self._maker(value)) is not None]
            if any(node.op_type not in REORDERINGS for node in together):
                found.append(together)
        return found

    def price(self, piece: Iterable[ir.Node]) -> float:
        """What a piece costs in float beyond what it costs now, at most: the placement may find a better way."""
        inside, backend = set(piece), self._backend
        total = 0.0
        for node in inside:
            as_float, as_integer = self._rules[node].costs(node)
            total += (as_float - as_integer) * self._size(node.outputs[0])
            function = self._behind.get(node)
            rule = row(backend, function) if function is not None else None
            if function is not None and rule is not None:
                total += rule.costs(function)[0] * self._size(function.outputs[0])
            for value in node.inputs:
                maker = self._maker(value)
                if value is not None and maker not in inside and maker and maker.name in self._plan.quantized:
                    total += backend.dequantize_cost * self._size(value) + backend.node_cost
            for value in self._outputs(node):
                if any(use.node not in inside and use.node.name in self._plan.quantized for use in value.uses()):
                    total += (backend.quantize_cost + self._rules[node].cost_behind) * self._size(value)
                    total += backend.node_cost
        return max(total, 0.0)

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


def costly_in_integers(
    pieces: Iterable[Piece],
    measure: Callable[[Iterable[str]], Mapping[str, float]],
    advance: Callable[[int], None] = lambda steps: None,
    *,
    most: int = GROUPS,
    cause: str = CHEAP,
) -> dict[str, str]:
    """The pieces that cost an output much of what it could have.

    Args:
        pieces: names of nodes, see :func:`cheap_in_float`.
        measure: nodes kept float → SQNR in dB of each float output.
        advance: told how many measurements are done.
        most: groups to measure, at most; neighbours are measured together where there are more pieces.
        cause: the reason that is given, ``{}`` standing for the output and its dB.

    Returns:
        Node name → reason to keep it float; empty where no output would gain 3 dB, or another lose 1 dB.
    """
    by_first = {piece[0]: piece for piece in pieces}
    together = groups(list(by_first), most)
    names = [name for piece in by_first.values() for name in piece]
    if not names:
        return {}
    now, best = measure(()), measure(names)
    hurt = _gaining(now, best)
    found: dict[str, str] = {}
    for done, group in enumerate(together if hurt else [], start=1):
        nodes = [name for first in group for name in by_first[first]]
        alone = now if len(nodes) == len(names) else measure(name for name in names if name not in nodes)
        if why := _what_it_costs(hurt, alone, best):
            found.update(dict.fromkeys(nodes, cause.format(why)))
        advance(done)
    if not hurt or len(found) == len(names) or (found and _gaining(now, measure(found))):
        return found
    of_groups = [[name for first in group for name in by_first[first]] for group in together]
    return _one_of_several(now, best, of_groups, measure, cause)


def _one_of_several(
    now: Mapping[str, float],
    best: Mapping[str, float],
    together: Sequence[Sequence[str]],
    measure: Callable[[Iterable[str]], Mapping[str, float]],
    cause: str,
) -> dict[str, str]:
    """The pieces that remain in float when they are put back one after the other, the last one first.

    So one stays where either of two would do, as of two Concats that share a scale: neither of them costs anything
    while the other one is float.
    """
    hurt = _gaining(now, best)
    found: dict[str, str] = {}
    in_float, reached = [name for nodes in together for name in nodes], best
    for nodes in reversed(together):
        others = [name for name in in_float if name not in nodes]
        without = measure(others) if others else now
        if why := _what_it_costs(hurt, without, best):
            found.update(dict.fromkeys(nodes, cause.format(why)))
        else:
            in_float, reached = others, without
    return found if _gaining(now, reached) else {}


def _what_it_costs(hurt: Iterable[str], without: Mapping[str, float], best: Mapping[str, float]) -> str:
    """The output that suffers most, and how much it has left of what it could have; empty where none does."""
    left = {output: without.get(output, -math.inf) for output in hurt}
    added = {output: _added(db, min(best[output], FINE)) for output, db in left.items()}
    worst = max(left, key=lambda output: added[output])
    audible = added[worst] > _AUDIBLE
    return f"output {worst!r} {left[worst]:.0f} dB of {best[worst]:.0f} dB" if audible else ""


def _gaining(now: Mapping[str, float], then: Mapping[str, float]) -> list[str]:
    """Outputs that gain much; none where another loses."""
    if not now.keys() <= then.keys() or any(then[name] < now[name] - _MOST_LOST for name in now if now[name] < FINE):
        return []
    return [name for name in now if now[name] < FINE and then[name] >= now[name] + _LEAST_GAIN]


def _added(sqnr: float, without: float) -> float:
    """Noise that a piece adds, in units of the noise without it."""
    if sqnr >= without:
        return 0.0
    return 10 ** ((without - sqnr) / 10) - 1 if math.isfinite(without - sqnr) else math.inf
