"""Which activation functions the target computes together with the integer operator before them."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Kind
from onnxq.graph.values import is_constant
from onnxq.planning.question import Decisions, Question
from onnxq.planning.table_rows import row

__all__ = ["absorb"]


_CUTS = frozenset({"Relu", "Clip"})
"""Whose range holds what is left of any tensor in front of them: of what an operator reads that copies codes, too."""


def absorb(asked: Question, decided: Decisions) -> None:
    """Pair activation functions with the candidate before them where nothing else reads what is between."""
    for node in asked.nodes:
        if node.op_type not in asked.backend.absorbed or node.domain != "":
            continue
        source = node.inputs[0] if node.inputs else None
        producer = source.producer() if source is not None else None
        if source is None or producer is None:
            continue
        if node in decided.rules and _left_alone(asked, decided, producer, node):
            del decided.rules[node]
            decided.kept[node] = "the operator before it stays float"
        excluded = node in asked.selection.excluded or node.name in asked.keep_float
        if not excluded and _can_absorb(asked, decided, producer, node) and _only_between(source, producer, node):
            decided.absorbed[node], decided.absorbs[producer] = producer, node
            decided.rules.pop(node, None)


def _can_absorb(asked: Question, decided: Decisions, producer: ir.Node, function: ir.Node) -> bool:
    """Whether an operator is a candidate that still may take in the activation function."""
    rule = decided.rules.get(producer)
    return (
        rule is not None
        and rule.kind in (Kind.COMPUTE, Kind.ELEMENTWISE, Kind.PRODUCT)
        and (rule.needs_output(producer) or not asked.backend.drops_absorbed)
        and _together(asked, decided, producer, function)
        and producer not in decided.absorbs
        and all(v is None or is_constant(v) for v in function.inputs[1:])
    )


def _only_between(value: ir.Value, producer: ir.Node, function: ir.Node) -> bool:
    """Whether a tensor is read by one node alone, in the graph it was made in."""
    return producer.graph is function.graph and not value.is_graph_output() and len(value.uses()) == 1


def _together(asked: Question, decided: Decisions, producer: ir.Node, function: ir.Node) -> bool:
    """Whether the target computes an activation function together with the operator before it."""
    if asked.backend.absorbs is not None:
        return asked.backend.absorbs(producer, function)
    rule = decided.rules[producer]
    return rule.fixed is None and (not rule.shares(producer) or function.op_type in _CUTS)


def _left_alone(asked: Question, decided: Decisions, producer: ir.Node, function: ir.Node) -> bool:
    """Whether the operator that the target computes an activation function together with stays float.

    Data has not seen the tensor between the two where both were to be quantized at first.
    """
    if producer in decided.rules or row(asked.backend, producer) is None:
        return False
    if asked.backend.absorbs is None:
        return producer.name in asked.keep_float
    return asked.backend.absorbs(producer, function)
