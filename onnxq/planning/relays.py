"""Operators that only hand numbers on, between float ones: in integers they would round for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import onnx_ir as ir

from onnxq.backend import Kind, OpRule

__all__ = ["idle_relays"]

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
    read: set[ir.Node] = set()
    for node in reversed(list(rules)):
        if node in relays:
            values = {output(node), *node.outputs}
            readers = {use.node for value in values for use in value.uses()}
            if any(reader in read or (reader in rules and reader not in relays) for reader in readers):
                read.add(node)
    fed: set[ir.Node] = set()
    for node, rule in rules.items():
        if node in relays and rule.needs_output(node):
            made = (value.producer() for value in node.inputs if value is not None)
            makers = {absorbed.get(maker, maker) for maker in made if maker is not None}
            if any(maker in fed or (maker in rules and maker not in relays) for maker in makers):
                fed.add(node)
    return {n: _BETWEEN if rules[n].needs_output(n) else _UNREAD for n in rules if n in relays - read - fed}
