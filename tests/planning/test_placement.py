"""The assignment of nodes to integers or float against all possible assignments."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.backend import Backend, Kind, OpRule
from onnxq.planning.placement import cheapest, elements
from onnxq.spec import QuantSpec

BACKEND = Backend(
    name="test",
    title="",
    activation=QuantSpec(),
    weight=QuantSpec(),
    rules={},
    formats={},
    quantize_cost=1.3,
    dequantize_cost=1.1,
    node_cost=5.0,
    reorder_cost=0.5,
)

GAIN = 1.1
"""What integers have to gain: float kernels count by so much less."""


def _graph(seed: int) -> tuple[ir.Graph, dict[ir.Node, OpRule]]:
    """A random graph of up to nine nodes, most of which could run in integers."""
    rng = np.random.default_rng(seed)
    x = ir.Value(name="x", shape=ir.Shape((1, 8)), type=ir.TensorType(ir.DataType.FLOAT))
    values, nodes = [x], []
    rules: dict[ir.Node, OpRule] = {}
    for k in range(int(rng.integers(3, 9))):
        inputs = [values[i] for i in rng.integers(0, len(values), int(rng.integers(1, 3)))]
        node = ir.node("Op", inputs, name=f"n{k}")
        node.outputs[0].name = f"v{k}"
        node.outputs[0].shape = ir.Shape((1, int(rng.integers(1, 20))))
        kind = [Kind.COMPUTE, Kind.COMPUTE, Kind.ELEMENTWISE, Kind.MOVEMENT, None][int(rng.integers(0, 5))]
        if kind is not None:
            costs = (float(rng.uniform(0, 6)), float(rng.uniform(0, 6)))
            rules[node] = OpRule("Op", kind, cost=costs, output=bool(rng.integers(0, 4)))
        nodes.append(node)
        values.append(node.outputs[0])
    return ir.Graph([x], [values[-1]], nodes=nodes, opset_imports={"": 17}), rules


def _serving(rules: Mapping[ir.Node, OpRule], forced: Set[ir.Node]) -> set[ir.Node]:
    serving = {n for n, r in rules.items() if r.kind is Kind.COMPUTE} | forced
    grown = True
    while grown:
        more = {
            n
            for n, r in rules.items()
            if r.kind is Kind.MOVEMENT and any(use.node in serving for use in n.outputs[0].uses())
        }
        grown = bool(more - serving)
        serving |= more
    return serving


def _cost(
    graph: ir.Graph, rules: Mapping[ir.Node, OpRule], integer: Set[ir.Node], forced: Set[ir.Node] = frozenset()
) -> float:
    """What an assignment costs, straight from the definition; infinite where it is not allowed."""
    total = 0.0
    serving = _serving(rules, forced)
    for node, rule in rules.items():
        as_float, as_integer = rule.costs(node, 1.0)
        total += (as_integer if node in integer else as_float / GAIN) * elements(node.outputs[0])
    for value in (*graph.inputs, *(n.outputs[0] for n in graph)):
        size = elements(value)
        producer = value.producer()
        readers = [use.node for use in value.uses()]
        candidates = [r for r in readers if r in rules]
        wanted = any(r in integer for r in candidates)
        rule_of_producer = rules.get(producer) if producer is not None else None
        quantizes = rule_of_producer is not None and rule_of_producer.output and producer in integer
        if quantizes:
            if any(r not in integer for r in readers) or value.is_graph_output():
                total += max(len(readers) - len(candidates), 1) * (1.1 * size + 5.0)
        elif wanted:
            if not any(r in serving for r in candidates):
                return float("inf")
            total += 1.3 * size + 5.0
            if rule_of_producer is not None and rule_of_producer.output and rule_of_producer.kind is Kind.COMPUTE:
                total += 0.5 * size
    return total


@pytest.mark.parametrize("seed", range(150))
def test_no_other_assignment_is_cheaper(seed: int) -> None:
    graph, rules = _graph(seed)
    chosen = cheapest(BACKEND, rules, lambda n: n.outputs[0], set(), set())
    best = min(
        _cost(graph, rules, set(subset))
        for count in range(len(rules) + 1)
        for subset in itertools.combinations(rules, count)
    )
    assert _cost(graph, rules, chosen) == pytest.approx(best, abs=0.5)  # costs are rounded to 1/64 each


def test_forced_nodes_run_in_integers() -> None:
    graph, rules = _graph(3)
    compute = next(n for n, r in rules.items() if r.kind is Kind.COMPUTE)
    dear = {**rules, compute: replace(rules[compute], cost=(0.0, 1000.0))}
    assert compute not in cheapest(BACKEND, dear, lambda n: n.outputs[0], set(), set())
    assert compute in cheapest(BACKEND, dear, lambda n: n.outputs[0], set(), {compute})
    assert graph.inputs


@pytest.mark.parametrize("seed", range(40))
def test_no_other_assignment_with_the_forced_nodes_is_cheaper(seed: int) -> None:
    graph, rules = _graph(seed)
    rng = np.random.default_rng(1000 + seed)
    forced = {n for n in rules if rng.random() < 0.3}
    chosen = cheapest(BACKEND, rules, lambda n: n.outputs[0], set(), forced)
    assert forced <= chosen
    others = [n for n in rules if n not in forced]
    best = min(
        _cost(graph, rules, forced | set(subset), forced)
        for count in range(len(others) + 1)
        for subset in itertools.combinations(others, count)
    )
    assert _cost(graph, rules, chosen, forced) == pytest.approx(best, abs=0.5)


def test_all_outputs_of_a_node_have_to_leave_integers() -> None:
    """A Split whose second output a float node reads: dequantizing it costs more than the integer kernel saves."""
    x = ir.Value(name="x", shape=ir.Shape((1, 100)), type=ir.TensorType(ir.DataType.FLOAT))
    conv = ir.node("Conv", [x], name="conv")
    split = ir.node("Split", [conv.outputs[0]], num_outputs=2, name="split")
    last = ir.node("Conv", [split.outputs[0]], name="last")
    other = ir.node("Exp", [split.outputs[1]], name="other")
    for k, value in enumerate(v for n in (conv, split, last, other) for v in n.outputs):
        value.name, value.shape = f"v{k}", ir.Shape((1, 100))
    split.outputs[1].shape = ir.Shape((1, 10_000))
    graph = ir.Graph([x], [last.outputs[0], other.outputs[0]], nodes=[conv, split, last, other], name="g")
    rules = {n: OpRule(n.op_type, Kind.COMPUTE, cost=(9.0, 1.0)) for n in (conv, last)}
    rules[split] = OpRule("Split", Kind.MOVEMENT, cost=(1.0, 0.0))
    chosen = cheapest(BACKEND, rules, lambda n: n.outputs[0], set(), set())
    assert chosen == {conv, last} and graph


def _chain(*ops: str) -> tuple[ir.Graph, list[ir.Node]]:
    """Operators of one input in a row, on tensors of 100 elements."""
    x = ir.Value(name="x", shape=ir.Shape((1, 100)), type=ir.TensorType(ir.DataType.FLOAT))
    nodes: list[ir.Node] = []
    for k, op in enumerate(ops):
        nodes.append(ir.node(op, [nodes[-1].outputs[0] if nodes else x], name=f"n{k}"))
        nodes[-1].outputs[0].name, nodes[-1].outputs[0].shape = f"v{k}", ir.Shape((1, 100))
    return ir.Graph([x], nodes[-1].outputs, nodes=nodes, name="g"), nodes


@pytest.mark.parametrize(("fused", "integer"), [(4.6, True), (4.65, False)])
def test_what_a_float_kernel_computes_on_the_side_counts_against_integers(fused: float, integer: bool) -> None:
    """900 / 1.1 = 818 in float; in integers 135 to quantize, 100, 115 to dequantize, and a Tanh with its own launch."""
    graph, (conv, tanh) = _chain("Conv", "Tanh")
    rules = {conv: OpRule("Conv", Kind.COMPUTE, cost=(9.0, 1.0))}
    backend = replace(BACKEND, fused_float={("Conv", "Tanh"): fused})
    chosen = cheapest(backend, rules, lambda n: n.outputs[0], set(), set())
    assert (conv in chosen) is integer and tanh not in chosen and graph


def test_a_kernel_for_channels_last_follows_what_feeds_it_but_where_it_is_asked_for() -> None:
    graph, (conv, pool, last) = _chain("Conv", "MaxPool", "Conv")
    rules = {
        conv: OpRule("Conv", Kind.COMPUTE, cost=(1.0, 100.0)),
        pool: OpRule("MaxPool", Kind.MOVEMENT, cost=(1.0, 0.5), cost_behind=0.1),
        last: OpRule("Conv", Kind.COMPUTE, cost=(100.0, 1.0)),
    }
    assert cheapest(BACKEND, rules, lambda n: n.outputs[0], set(), set()) == {last} and graph
    assert cheapest(BACKEND, rules, lambda n: n.outputs[0], set(), {pool}) == {pool, last}


def test_unknown_dimensions_count_sixteen_but_the_first() -> None:
    assert elements(ir.Value(shape=ir.Shape(("N", 3, "H", "W")))) == 3 * 16 * 16
    assert elements(ir.Value(shape=ir.Shape(()))) == 1
    assert elements(ir.Value()) > 0
