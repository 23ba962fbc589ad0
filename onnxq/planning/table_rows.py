"""Which row of a target's table speaks of a node, and of which of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from onnxq.backend import Backend, OpRule
from onnxq.graph.traverse import full_type
from onnxq.graph.values import is_constant
from onnxq.plan import Site

__all__ = ["WeightRow", "activations_read", "positions", "row", "weight_row"]


def row(backend: Backend, node: ir.Node) -> OpRule | None:
    """The row for a node: the one for a constant first input (``"Gather:constant"``) where there is one.

    Where the row says that it cannot be quantized, it is that of its weights alone (``"ConvTranspose:stored"``). Rows
    for operators of another domain are named with it, ``"com.microsoft::Attention"``.
    """
    rules = backend.rules
    if node.domain != "":
        return rules.get(full_type(node))
    if node.inputs and is_constant(node.inputs[0]) and f"{node.op_type}:constant" in rules:
        return rules[f"{node.op_type}:constant"]
    found, stored = rules.get(node.op_type), rules.get(f"{node.op_type}:stored")
    refused = stored is not None and found is not None and found.when is not None and found.when(node) is not None
    return stored if refused else found


class WeightRow(NamedTuple):
    """Who reads a weight first, and what the target's table says of it.

    Attributes:
        node: reads it.
        value: the weight.
        rule: the row for the node.
    """

    node: ir.Node
    value: ir.Value
    rule: OpRule


def weight_row(backend: Backend, site: Site, nodes: Mapping[str, ir.Node]) -> WeightRow | None:
    """The row that a site's weight is quantized by; None of other sites.

    Args:
        backend: its table is asked.
        site: of a plan for it.
        nodes: those of the model, by name.
    """
    node = nodes.get(site.readers[0].node) if site.role == "weight" and site.readers else None
    value = node.inputs[site.readers[0].index] if node is not None else None
    rule = row(backend, node) if node is not None else None
    return WeightRow(node, value, rule) if node is not None and value is not None and rule is not None else None


def positions(rule: OpRule, node: ir.Node) -> Iterable[int]:
    """Positions of a node's inputs that its rule speaks of, except the bias."""
    if rule.data is None:
        return range(len(node.inputs))
    data = rule.data(node) if callable(rule.data) else rule.data
    return sorted(p for p in {*data, *rule.weights} if p < len(node.inputs))


def activations_read(rule: OpRule, node: ir.Node) -> list[ir.Value]:
    """What a node reads at these positions that is no constant."""
    read = (node.inputs[position] for position in positions(rule, node))
    return [value for value in read if value is not None and not is_constant(value)]
