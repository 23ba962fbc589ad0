"""Which candidates run in integers: all, the multiply-accumulates, or what costs least; the others, with the reason."""

from __future__ import annotations

from collections.abc import Container, Mapping, Set

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.graph.picking import PICKED_FROM
from onnxq.graph.traverse import subgraphs
from onnxq.graph.values import is_constant
from onnxq.planning.placement import cheapest, elements
from onnxq.planning.question import Decisions, Question
from onnxq.planning.relays import between, idle_relays
from onnxq.planning.specs import activation_spec
from onnxq.planning.table_rows import row

__all__ = ["assign", "store_weights"]

_LEAST_STORED = 1024
"""Elements from which the weight of a float layer is stored as integers."""

_NOT_COMPUTE = "not a multiply-accumulate with constant weights (placement 'compute')"
_FUSED = "computed in float together with the activation function after it, as the grid is symmetric"


def assign(asked: Question, decided: Decisions) -> None:
    """Leave in ``rules`` the candidates that run in integers; say of the others why not, and which store weights."""
    rules = decided.rules
    forced = {n for n in rules if asked.selection.forced(n)}
    free = {n: r for n, r in rules.items() if r.kind is not Kind.WEIGHT_ONLY}
    for node in rules.keys() - free.keys():
        why = f"{node.op_type} has no integer kernel on {asked.backend.name}"
        _keep(asked, decided, node, asked.backend.stored_because.get(node.op_type, why))
    reasons = _why_float(asked, decided, free, forced)
    for node in free:
        if node in reasons:
            _keep(asked, decided, node, reasons[node])
    chosen = free.keys() - reasons.keys()
    for function, producer in list(decided.absorbed.items()):
        if producer in chosen:
            decided.kept.pop(function, None)
        else:
            del decided.absorbs[decided.absorbed.pop(function)]
            decided.kept.setdefault(function, "the operator before it stays float")
    decided.rules = {n: r for n, r in rules.items() if n in chosen}


def _why_float(
    asked: Question, decided: Decisions, free: Mapping[ir.Node, OpRule], forced: Set[ir.Node]
) -> Mapping[ir.Node, str]:
    """The candidates that the placement asked for leaves float, with the reasons."""
    if asked.placement == "compute":
        chosen = {n for n, r in free.items() if r.kind is Kind.COMPUTE} | forced
        return dict.fromkeys(free.keys() - chosen, _NOT_COMPUTE)
    if asked.placement != "all":
        return _dearer(asked, decided, free, forced)
    if asked.options.placement != "auto":
        return {}
    idle = idle_relays(free, decided.output, decided.absorbed, forced)
    return idle if asked.backend.mixes else between(idle, asked.backend.in_float, _LEAST_STORED)


def _dearer(
    asked: Question, decided: Decisions, free: Mapping[ir.Node, OpRule], forced: Set[ir.Node]
) -> dict[ir.Node, str]:
    """The candidates that cost less in float, and those of which it is known that integers gain nothing."""
    held, fused = _output_makers(asked, decided), _fused_in_float(asked, decided)
    wanted = {n: r for n, r in free.items() if n in forced or not (r.kind is Kind.PRODUCT or n in held or n in fused)}
    split = {group.inputs[0]: asked.backend.split_cost.get(group.kind, 0.0) for group in asked.groups}
    chosen = cheapest(asked.backend, wanted, decided.output, decided.absorbed.keys(), forced, asked.size, split)

    def why(node: ir.Node) -> str:
        if node in fused:
            return _FUSED
        if free[node].kind is Kind.PRODUCT:
            return "product of two activations: integers gain nothing here"
        if node in held:
            return f"it computes {held[node]}, which stays float"
        return "slower in integers than in float, counting the conversions"

    return {node: why(node) for node in free if node not in chosen}


def store_weights(asked: Question, decided: Decisions, names: Container[str | None]) -> None:
    """Store the weights of layers that data keeps float as integers, where that makes the file smaller.

    Args:
        asked: the question.
        decided: after the assignment; changed in place.
        names: the layers; those that run in integers all the same are left alone.
    """
    for node in asked.nodes:
        rule = row(asked.backend, node) if node.name in names and node in decided.kept else None
        if rule is not None:
            _store(asked, decided, node, rule)


def _keep(asked: Question, decided: Decisions, node: ir.Node, reason: str) -> None:
    """Keep a node's arithmetic float, and store its weights as integers where that makes the file smaller."""
    _store(asked, decided, node, decided.rules[node])
    decided.kept[node] = reason


def _store(asked: Question, decided: Decisions, node: ir.Node, rule: OpRule) -> None:
    weights = [v for p in rule.weights if p < len(node.inputs) and is_constant(v := node.inputs[p])]
    least = 0 if asked.placement == "all" or asked.selection.forced(node) else _LEAST_STORED
    large = any(elements(v) >= least for v in weights if v is not None)
    if large and (asked.backend.stores_weights or rule.kind is Kind.WEIGHT_ONLY):
        decided.stored[node] = rule


def _fused_in_float(asked: Question, decided: Decisions) -> set[ir.Node]:
    """Nodes whose activation function no zero point stands for."""
    if not asked.backend.absorbs_by_zero_point:
        return set()
    pairs = decided.absorbed.items()
    specs = {producer: activation_spec(asked, decided, function, function.outputs[0]) for function, producer in pairs}
    return {node for node, spec in specs.items() if spec.symmetric and spec.signed and spec.bits == 8}


def _output_makers(asked: Question, decided: Decisions) -> dict[ir.Node, str]:
    """Nodes other than multiply-accumulates that compute an output of a graph, moved about or not, and of which."""
    found: dict[ir.Node, str] = {}
    rules = decided.rules
    holders = {id(graph): node.op_type for node in asked.nodes for graph in subgraphs(node)}
    for node in reversed(asked.nodes):
        if node not in rules or rules[node].kind is Kind.COMPUTE:
            continue
        value = decided.output(node)
        readers = [use.node for use in value.uses()]
        only_moved = all(r in found and rules[r].kind is Kind.MOVEMENT for r in readers)
        if value.is_graph_output():
            holder = holders.get(id(value.graph), "")
            part = "a branch" if holder == "If" else "the body"
            whole = "what is picked from" if value.meta.get(PICKED_FROM) else "a model output"
            found[node] = f"an output of {part} of its {holder}" if holder else whole
        elif readers and only_moved:
            found[node] = found[readers[0]]
    return found
