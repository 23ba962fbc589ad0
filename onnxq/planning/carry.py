"""How operators that hand numbers on (Reshape, Slice, Concat, MaxPool and so on) are quantized: as neighbours ask.

Such an operator has no arithmetic of its own to be quantized. With a coarser grid than the layer behind it, it would
round what that layer is to read finely; with a coarser one than the layer before it, what that layer has given.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.graph.values import is_constant
from onnxq.planning.question import Decisions, Question
from onnxq.planning.specs import activation_spec, default_spec
from onnxq.planning.table_rows import positions
from onnxq.spec import QuantSpec

__all__ = ["carry", "without_kernel"]


def _hands_on(node: ir.Node, rule: OpRule) -> bool:
    """Whether what a node gives are numbers that it reads."""
    return rule.kind is Kind.MOVEMENT or rule.shares(node) or node.op_type == "Concat"


def carry(asked: Question, decided: Decisions, *, kernels: bool = False) -> None:
    """Note in ``carried`` the spec of each node that hands numbers on, where it has to be another than its own.

    It is that of the widest reader in integers; where something else reads as well, at least that of what makes the
    numbers. Of one width, what all readers want holds, unless the options ask for something else of the node itself.

    Args:
        asked: the question.
        decided: in ``rules``, what runs in integers.
        kernels: leave out what a node has no kernel for, see :func:`without_kernel`.
    """
    decided.carried = {}
    movers = [node for node in asked.nodes if node in decided.rules and _hands_on(node, decided.rules[node])]
    if not movers:
        return
    own = {node: activation_spec(asked, decided, node, node.outputs[0]) for node in movers}
    plain = default_spec(asked)
    wanted: dict[ir.Node, QuantSpec] = {}
    torn: set[ir.Node] = set()
    elsewhere: set[ir.Node] = set()
    for node in reversed(movers):
        specs: list[QuantSpec] = []
        for value in _outputs(decided, node):
            uses = list(value.uses())
            if value.is_graph_output() or not uses:
                elsewhere.add(node)
            for reader, position in uses:
                if reader in own:
                    specs += [wanted[reader]] if reader in wanted else []
                    torn |= {node} if reader in torn else set()
                    elsewhere |= {node} if reader in elsewhere else set()
                elif reader in decided.rules and position in positions(decided.rules[reader], reader):
                    rule = decided.rules[reader]
                    theirs = rule.activation(value) if callable(rule.activation) else rule.activation
                    specs.append(activation_spec(asked, decided, reader, value, theirs))
                else:
                    elsewhere.add(node)
        if specs:
            wanted[node] = max(specs, key=lambda spec: spec.bits)
            torn |= {node} if len(set(specs)) > 1 else set()
    given: dict[ir.Node, QuantSpec] = {}
    for node in movers:
        for value, maker in _makers(decided, node):
            spec = given.get(maker) if maker in own else activation_spec(asked, decided, maker, value)
            if spec is not None and (node not in given or spec.bits > given[node].bits):
                given[node] = spec
        found = [own[node], *([wanted[node]] if node in wanted else [])]
        found += [given[node]] if node in elsewhere and node in given else []
        best = max(found, key=lambda spec: spec.bits)
        if best.bits == own[node].bits == plain.bits and own[node] == plain and node in wanted and node not in torn:
            best = wanted[node]
        read = (activation_spec(asked, decided, node, value).bits for value in _data(decided, node))
        changed = best != own[node] or any(bits < best.bits for bits in read)
        if changed and (not kernels or best.bits in decided.rules[node].act_bits):
            decided.carried[node] = best


def without_kernel(decided: Decisions) -> list[ir.Node]:
    """Nodes that have no integer kernel for the width that they would have to hand on."""
    return [node for node, spec in decided.carried.items() if spec.bits not in decided.rules[node].act_bits]


def _outputs(decided: Decisions, node: ir.Node) -> list[ir.Value]:
    return [decided.output(node), *node.outputs[1:]]


def _makers(decided: Decisions, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Node]]:
    """What a node reads, with the nodes in integers that make it."""
    for value in _data(decided, node):
        maker = value.producer()
        maker = decided.absorbed.get(maker, maker) if maker is not None else None
        if maker is not None and maker in decided.rules:
            yield value, maker


def _data(decided: Decisions, node: ir.Node) -> list[ir.Value]:
    """The activations that a node reads."""
    read = (node.inputs[position] for position in positions(decided.rules[node], node))
    return [value for value in read if value is not None and not is_constant(value)]
