"""Which nodes run in integers: the assignment that costs least, by the target's table of kernel and conversion costs.

A node with an integer kernel may run either way: the integer kernel is often cheaper than the float one, but where an
integer node meets a float one the tensor between them has to be converted, and a float convolution computes the
activation function behind it for free. The cheapest assignment is a minimum cut, found exactly; integers have to gain a
tenth, since they cost accuracy. A tensor enters integers only for a multiply-accumulate: cheap arithmetic and data
movement run in integers inside regions of such nodes, never for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.values import is_constant, only_reader
from onnxq.planning.conversions import entering, leaving, reordering
from onnxq.planning.minimum_cut import MinimumCut

__all__ = ["UNKNOWN_DIM", "cheapest", "elements"]

_WORTH = 1.1
"""How many times as long as integers and their conversions float has to take to be given up. A gain that is smaller by
the table is none in fact: plans without it are as fast, and a few dB more accurate at times (measured on 26 models)."""
UNKNOWN_DIM = 16
_FOREVER = 1 << 60
_INTEGER, _FLOAT = "integer", "float"
"""Source and sink: the two sides that a node may be on."""


def elements(value: ir.Value) -> int:
    """Number of elements of a tensor; an unknown first dimension counts 1, other unknown dimensions 16."""
    if value.shape is None:
        return UNKNOWN_DIM**2
    count = 1
    for position, dim in enumerate(value.shape):
        count *= dim if isinstance(dim, int) else (1 if position == 0 else UNKNOWN_DIM)
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
    costs = _Costs(backend, rules, output, absorbed, forced, size, split)
    tensors: dict[ir.Value, None] = {}
    for node, rule in rules.items():
        costs.add_node(node, rule)
        for value in (*node.inputs, output(node), *node.outputs[1:]):
            if value is not None and value.name and not is_constant(value):
                tensors[value] = None
    for value in tensors:
        costs.add_tensor(value)
    side = costs.cut.source_side(_INTEGER, _FLOAT)
    return {node for node in rules if node in side}


@dataclass(slots=True)
class _Costs:
    """What nodes and tensors cost, as edges of a graph whose source is integer and whose sink is float.

    The fields are the arguments of :func:`cheapest`.
    """

    backend: Backend
    rules: Mapping[ir.Node, OpRule]
    output: Callable[[ir.Node], ir.Value]
    absorbed: Set[ir.Node]
    forced: Set[ir.Node]
    size: Callable[[ir.Value], int]
    split: Mapping[ir.Value, float]
    cut: MinimumCut = field(default_factory=MinimumCut)
    serving: set[ir.Node] = field(init=False)

    def __post_init__(self) -> None:
        self.serving = _serving(self.rules, self.output, self.forced)

    def add_node(self, node: ir.Node, rule: OpRule) -> None:
        """What a node costs either way."""
        cut, backend, behind = self.cut, self.backend, self.output(node)
        as_float, integer_cost = rule.costs(node, self.size(behind))
        float_cost = as_float / _WORTH
        if node in self.forced:
            cut.edge(_INTEGER, node, _FOREVER)
        elif (before := _float_fusion(backend, node)) is not None and before in self.rules:
            cut.edge(before, node, _units(float_cost))  # paid when float behind an integer node
        else:
            cut.edge(_INTEGER, node, _units(float_cost))  # paid when float
        cut.edge(node, _FLOAT, _units(integer_cost))  # paid when integer
        if rule.cost_behind and node not in self.forced and node.inputs[0] is not None:
            for source in _sources(node.inputs[0], self.rules, self.absorbed):
                cut.edge(node, source if source is not None else _FLOAT, _FOREVER)
        after = only_reader(behind)
        if after is not None and after not in self.rules and _float_fusion(backend, after) is node:
            fused = backend.fused_float[node.op_type, after.op_type] * self.size(behind)
            cut.edge(node, _FLOAT, _units(fused + backend.node_cost))

    def add_tensor(self, value: ir.Value) -> None:
        """What it costs to convert a tensor, on its way into integers and out of them."""
        cut, backend = self.cut, self.backend
        enter = _units(entering(backend, value, self.size(value)))
        producer = _producer(value, self.absorbed)
        integer_readers = [use.node for use in value.uses() if use.node in self.rules]
        origin: Hashable = _FLOAT
        if producer is not None and producer in self.rules and self.rules[producer].needs_output(producer):
            origin = producer
            if self.rules[producer].kind is Kind.COMPUTE:
                enter += _units(reordering(backend, value, self.size(value)))
            enter += _units(self.rules[producer].cost_behind * self.size(value))
            self._add_leaving(value, producer, integer_readers)
        if integer_readers:
            enters = ("enters", value)  # integer as soon as one reader is
            if not any(r in self.serving for r in integer_readers):
                enter = _FOREVER
            for reader in integer_readers:
                cut.edge(reader, enters, _FOREVER)
            cut.edge(enters, origin, enter)

    def _add_leaving(self, value: ir.Value, producer: ir.Node, integer_readers: Sequence[ir.Node]) -> None:
        """What a DequantizeLinear behind an integer node costs, one for each reader in float."""
        cut, backend, size, split = self.cut, self.backend, self.size(value), self.split.get(value, 0.0)
        readers = len(value.uses())
        copies = max(readers - len(integer_readers), 1)
        leaves = ("leaves", value)  # integer only if every reader is
        lost = split if copies > 1 else 0.0
        leave = leaving(backend, value, size) * copies + lost * size
        cut.edge(producer, leaves, _units(leave))
        if len(integer_readers) > 1 and value in self.split:
            again = leaving(backend, value, size) + split * size
            cut.edge(producer, integer_readers[0], _units(again))  # paid when that is float and the producer is not
        for reader in integer_readers:
            cut.edge(leaves, reader, _FOREVER)
        if len(integer_readers) < readers or value.is_graph_output():
            cut.edge(leaves, _FLOAT, _FOREVER)


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
