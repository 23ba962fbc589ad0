"""Operators that only hand numbers on, between float ones: in integers they would round for nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Set

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.graph.values import is_constant

__all__ = ["between", "idle_relays"]

_UNREAD = "no integer operator reads it"
_BETWEEN = "it only moves values from one float operator to another"


def idle_relays(
    rules: Mapping[ir.Node, OpRule],
    output: Callable[[ir.Node], ir.Value],
    absorbed: Mapping[ir.Node, ir.Node],
    forced: Set[ir.Node],
) -> dict[ir.Node, str]:
    """Data movement and Concats that are better left float, with the reason.

    One whose row asks for a quantizer behind it is of use where what it reads, or what reads it, runs in integers; one
    whose row does not, only where what reads it does. Other movement and Concats in between are looked through.

    Args:
        rules: nodes that are to run in integers, in the order of the graph, with their rows.
        output: node → the tensor behind it and the activation function it absorbed.
        absorbed: activation function → the node it is computed together with.
        forced: nodes that run in integers whatever it is for.
    """
    relays = {n for n, rule in rules.items() if rule.kind is Kind.MOVEMENT or n.op_type == "Concat"} - forced
    of_use = _read_in_integers(rules, relays, output) | _fed_in_integers(rules, relays, absorbed)
    return {n: _BETWEEN if rules[n].needs_output(n) else _UNREAD for n in rules if n in relays - of_use}


def _read_in_integers(
    rules: Mapping[ir.Node, OpRule], relays: Set[ir.Node], output: Callable[[ir.Node], ir.Value]
) -> set[ir.Node]:
    """Relays that an operator in integers reads, by way of others."""
    found: set[ir.Node] = set()
    for node in reversed(list(rules)):
        if node in relays:
            readers = {use.node for value in {output(node), *node.outputs} for use in value.uses()}
            if any(reader in found or (reader in rules and reader not in relays) for reader in readers):
                found.add(node)
    return found


def _fed_in_integers(
    rules: Mapping[ir.Node, OpRule], relays: Set[ir.Node], absorbed: Mapping[ir.Node, ir.Node]
) -> set[ir.Node]:
    """Relays with a quantizer behind them that read what an operator in integers makes, by way of others."""
    found: set[ir.Node] = set()
    for node, rule in rules.items():
        if node in relays and rule.needs_output(node):
            made = (value.producer() for value in node.inputs if value is not None)
            makers = {absorbed.get(maker, maker) for maker in made if maker is not None}
            if any(maker in found or (maker in rules and maker not in relays) for maker in makers):
                found.add(node)
    return found


def between(idle: Mapping[ir.Node, str], operators: Set[str], large: int) -> dict[ir.Node, str]:
    """Of relays that are better left float, those that only some operators read, and that read only these.

    Args:
        idle: relays, with the reason.
        operators: names of these operators. Inputs of the model are read as well, and small constants.
        large: elements of a constant from which on it is better stored in integers, as a table that a Gather reads.
    """
    kept = {node: why for node, why in idle.items() if not _reads_large(node, large)}
    while others := {node for node in kept if not _is_between(node, kept, operators)}:
        kept = {node: why for node, why in kept.items() if node not in others}
    return kept


def _reads_large(node: ir.Node, large: int) -> bool:
    constants = (value.const_value for value in node.inputs if value is not None and is_constant(value))
    return any(constant is not None and constant.size >= large for constant in constants)


def _is_between(node: ir.Node, relays: Container[ir.Node], operators: Set[str]) -> bool:
    makers = [value.producer() for value in node.inputs if value is not None]
    readers = [use.node for value in node.outputs for use in value.uses()]
    around = [other for other in (*makers, *readers) if other is not None]
    if not readers or any(value.is_graph_output() for value in node.outputs):
        return False
    return all(other in relays or other.op_type in operators for other in around)
