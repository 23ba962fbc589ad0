"""Which nodes run in integers: the assignment that costs least, by the target's table of kernel and conversion costs.

A node with an integer kernel may run either way: the integer kernel is often cheaper than the float one, but where an
integer node meets a float one the tensor between them has to be converted, and a float convolution computes the
activation function behind it for free. The cheapest assignment is a minimum cut, found exactly; integers have to gain a
tenth, since they cost accuracy. A tensor enters integers only for a multiply-accumulate: cheap arithmetic and data
movement run in integers inside regions of such nodes, never for themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from types import MappingProxyType

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.values import is_constant, only_reader

__all__ = ["cheapest", "elements"]

_WORTH = 1.1
"""How many times as long as integers and their conversions float has to take to be given up. A gain that is smaller by
the table is none in fact: plans without it are as fast, and a few dB more accurate at times (measured on 26 models)."""
_UNKNOWN_DIM = 16
_FOREVER = 1 << 60


def elements(value: ir.Value) -> int:
    """Number of elements of a tensor; an unknown first dimension counts 1, other unknown dimensions 16."""
    if value.shape is None:
        return _UNKNOWN_DIM**2
    count = 1
    for position, dim in enumerate(value.shape):
        count *= dim if isinstance(dim, int) else (1 if position == 0 else _UNKNOWN_DIM)
    return max(count, 1)


def cheapest(
    backend: Backend,
    rules: Mapping[ir.Node, OpRule],
    output: Callable[[ir.Node], ir.Value],
    absorbed: Set[ir.Node],
    forced: Set[ir.Node],
    size: Callable[[ir.Value], int] = elements,
    split: Mapping[ir.Value, float] = MappingProxyType({}),
) -> set[ir.Node]:
    """The nodes of ``rules`` that should run in integers.

    Args:
        backend: gives the costs of conversions and of activation functions that float kernels compute for free.
        rules: nodes that could run in integers.
        output: node → the tensor behind it and the activation function it absorbed.
        absorbed: activation functions computed by the node before them.
        forced: nodes that run in integers whatever it costs.
        size: number of elements of a tensor.
        split: tensors from which groups of float nodes are computed → what it costs an element more if two of them
            read a DequantizeLinear each, see :attr:`Backend.split_cost`.
    """
    cut = _MinimumCut()
    source, sink = "source", "sink"  # source side = integer
    serving = _serving(rules, output, forced)
    tensors: dict[ir.Value, None] = {}
    for node, rule in rules.items():
        behind = output(node)
        as_float, as_integer = rule.costs(node)
        float_cost, integer_cost = as_float * size(behind) / _WORTH, as_integer * size(behind)
        if node in forced:
            cut.edge(source, node, _FOREVER)
        elif (before := _float_fusion(backend, node)) is not None and before in rules:
            cut.edge(before, node, _units(float_cost))  # paid when float behind an integer node
        else:
            cut.edge(source, node, _units(float_cost))  # paid when float
        cut.edge(node, sink, _units(integer_cost))  # paid when integer
        if rule.cost_behind and node not in forced and node.inputs[0] is not None:
            for before in _sources(node.inputs[0], rules, absorbed):
                cut.edge(node, before if before is not None else sink, _FOREVER)
        after = only_reader(behind)
        if after is not None and after not in rules and _float_fusion(backend, after) is node:
            cut.edge(
                node, sink, _units(backend.fused_float[node.op_type, after.op_type] * size(behind) + backend.node_cost)
            )
        for value in (*node.inputs, behind, *node.outputs[1:]):
            if value is not None and value.name and not is_constant(value):
                tensors[value] = None
    for value in tensors:
        enter = _units(backend.quantize_cost * size(value) + backend.node_cost)
        producer = _producer(value, absorbed)
        readers = [use.node for use in value.uses()]
        integer_readers = [r for r in readers if r in rules]
        copies = max(len(readers) - len(integer_readers), 1)  # of the DequantizeLinear, one for each reader
        again = _units((backend.dequantize_cost + split.get(value, 0.0)) * size(value) + backend.node_cost)
        lost = split.get(value, 0.0) if copies > 1 else 0.0
        leave = _units((backend.dequantize_cost * copies + lost) * size(value) + backend.node_cost * copies)
        has_float_reader = len(integer_readers) < len(readers) or value.is_graph_output()
        origin: Hashable = sink
        if producer is not None and producer in rules and rules[producer].needs_output(producer):
            origin = producer
            if rules[producer].kind is Kind.COMPUTE:
                enter += _units(backend.reorder_cost * size(value))
            enter += _units(rules[producer].cost_behind * size(value))
            leaves = ("leaves", value)  # integer only if every reader is
            cut.edge(producer, leaves, leave)
            if len(integer_readers) > 1 and value in split:
                cut.edge(producer, integer_readers[0], again)  # paid when that is float and the producer is not
            for reader in integer_readers:
                cut.edge(leaves, reader, _FOREVER)
            if has_float_reader:
                cut.edge(leaves, sink, _FOREVER)
        if integer_readers:
            enters = ("enters", value)  # integer as soon as one reader is
            if not any(r in serving for r in integer_readers):
                enter = _FOREVER
            for reader in integer_readers:
                cut.edge(reader, enters, _FOREVER)
            cut.edge(enters, origin, enter)
    side = cut.source_side(source, sink)
    return {node for node in rules if node in side}


def _producer(value: ir.Value, absorbed: Set[ir.Node]) -> ir.Node | None:
    """The node that makes a tensor; for an absorbed activation function the node it is computed with."""
    producer = value.producer()
    if producer is not None and producer in absorbed and producer.inputs[0] is not None:
        return producer.inputs[0].producer()
    return producer


def _sources(value: ir.Value, rules: Mapping[ir.Node, OpRule], absorbed: Set[ir.Node]) -> list[ir.Node | None]:
    """The node that makes a tensor, and the ones that feed it as far up as cheap arithmetic goes; ``None``: not ours.

    Integer convolutions keep channels last. A kernel that is only good in that layout needs all it depends on in it.
    """
    found: dict[ir.Node | None, None] = {}
    stack = [value]
    while stack:
        current = stack.pop()
        node = _producer(current, absorbed)
        node = node if node in rules else None
        if node in found:
            continue
        found[node] = None
        if node is not None and rules[node].kind is Kind.ELEMENTWISE:
            stack += [v for v in node.inputs if v is not None and v.const_value is None]
    return list(found)


def _serving(
    rules: Mapping[ir.Node, OpRule], output: Callable[[ir.Node], ir.Value], forced: Set[ir.Node]
) -> set[ir.Node]:
    """Multiply-accumulates and forced nodes, and the data movement and Concats that lead to one."""
    relays = [n for n, rule in rules.items() if rule.kind is Kind.MOVEMENT or n.op_type == "Concat"]
    serving = {n for n, rule in rules.items() if rule.kind is Kind.COMPUTE} | forced
    for node in reversed(relays):
        if any(use.node in serving for value in (output(node), *node.outputs[1:]) for use in value.uses()):
            serving.add(node)
    return serving


def _float_fusion(backend: Backend, node: ir.Node) -> ir.Node | None:
    """The node whose float kernel computes this one for free: the activation function or bias behind it."""
    inputs = [v for v in node.inputs if v is not None and not is_constant(v)]
    if len(inputs) != 1:
        return None
    producer = inputs[0].producer()
    if producer is None or (producer.op_type, node.op_type) not in backend.fused_float:
        return None
    return producer if only_reader(inputs[0]) is node else None


def _units(cost: float) -> int:
    return round(cost * 64)


class _MinimumCut:
    """Dinic's maximum flow on integer capacities; the source side of the minimum cut is what remains reachable."""

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # per vertex: ids into the arrays below
        self._to: list[int] = []
        self._capacity: list[int] = []

    def _vertex(self, key: Hashable) -> int:
        if key not in self._index:
            self._index[key] = len(self._edges)
            self._edges.append([])
        return self._index[key]

    def edge(self, start: Hashable, end: Hashable, capacity: int) -> None:
        a, b = self._vertex(start), self._vertex(end)
        for at, to, room in ((a, b, capacity), (b, a, 0)):
            self._edges[at].append(len(self._to))
            self._to.append(to)
            self._capacity.append(room)

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        start, end = self._vertex(source), self._vertex(sink)
        while True:
            level = self._levels(start)
            if level[end] < 0:
                return {key for key, vertex in self._index.items() if level[vertex] >= 0}
            position = [0] * len(self._edges)
            while self._augment(start, end, level, position):
                pass

    def _levels(self, start: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[start] = 0
        queue = deque([start])
        while queue:
            vertex = queue.popleft()
            for e in self._edges[vertex]:
                if self._capacity[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[vertex] + 1
                    queue.append(self._to[e])
        return level

    def _augment(self, start: int, end: int, level: Sequence[int], position: list[int]) -> bool:
        """One augmenting path along increasing levels, without recursion."""
        path: list[int] = []
        vertex = start
        while vertex != end:
            edges = self._edges[vertex]
            while position[vertex] < len(edges):
                e = edges[position[vertex]]
                if self._capacity[e] and level[self._to[e]] == level[vertex] + 1:
                    break
                position[vertex] += 1
            else:
                if not path:
                    return False
                e = path.pop()
                vertex = self._to[e ^ 1]
                position[vertex] += 1
                continue
            path.append(e)
            vertex = self._to[e]
        room = min(self._capacity[e] for e in path)
        for e in path:
            self._capacity[e] -= room
            self._capacity[e ^ 1] += room
        return True
