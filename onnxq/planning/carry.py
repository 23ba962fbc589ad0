"""How operators that hand numbers on (Reshape, Slice, Concat, MaxPool and so on) are quantized: as neighbours ask.

Such an operator has no arithmetic of its own to be quantized. With a coarser grid than the layer behind it, it would
round what that layer is to read finely; with a coarser one than the layer before it, what that layer has given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.planning.question import Decisions, Question
from onnxq.planning.specs import activation_spec, default_spec
from onnxq.planning.table_rows import activations_read, positions
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
    readers = _read(asked, decided, own)
    given = _given(asked, decided, own.keys())
    for node in movers:
        wanted = readers.wanted.get(node)
        found = [own[node], *([wanted] if wanted is not None else [])]
        found += [given[node]] if node in readers.elsewhere and node in given else []
        best = max(found, key=lambda spec: spec.bits)
        free = best.bits == own[node].bits == plain.bits and own[node] == plain
        if free and wanted is not None and node not in readers.torn:
            best = wanted
        data = activations_read(decided.rules[node], node)
        read = (activation_spec(asked, decided, node, value).bits for value in data)
        changed = best != own[node] or any(bits < best.bits for bits in read)
        if changed and (not kernels or best.bits in decided.rules[node].act_bits):
            decided.carried[node] = best


@dataclass(slots=True)
class _Readers:
    """Who reads what nodes hand on, directly or handed on again.

    Attributes:
        wanted: node → the widest spec that a reader in integers asks for.
        torn: nodes whose readers ask for several.
        elsewhere: nodes of which something else reads, or that give an output of a graph.
    """

    wanted: dict[ir.Node, QuantSpec] = field(default_factory=dict)
    torn: set[ir.Node] = field(default_factory=set)
    elsewhere: set[ir.Node] = field(default_factory=set)


def _read(asked: Question, decided: Decisions, own: dict[ir.Node, QuantSpec]) -> _Readers:
    """The readers of the nodes in ``own``, which are in the order of the graph."""
    found = _Readers()
    for node in reversed(own):
        specs: list[QuantSpec] = []
        for value in _outputs(decided, node):
            uses = list(value.uses())
            if value.is_graph_output() or not uses:
                found.elsewhere.add(node)
            for reader, position in uses:
                if reader in own:
                    specs += [found.wanted[reader]] if reader in found.wanted else []
                    found.torn |= {node} if reader in found.torn else set()
                    found.elsewhere |= {node} if reader in found.elsewhere else set()
                elif reader in decided.rules and position in positions(decided.rules[reader], reader):
                    theirs = decided.rules[reader].reads(value)
                    specs.append(activation_spec(asked, decided, reader, value, theirs))
                else:
                    found.elsewhere.add(node)
        if specs:
            found.wanted[node] = max(specs, key=lambda spec: spec.bits)
            found.torn |= {node} if len(set(specs)) > 1 else set()
    return found


def _given(asked: Question, decided: Decisions, movers: Collection[ir.Node]) -> dict[ir.Node, QuantSpec]:
    """The widest spec in which layers give the numbers that each of the nodes hands on, in the order of the graph."""
    given: dict[ir.Node, QuantSpec] = {}
    for node in movers:
        for value, maker in _makers(decided, node):
            spec = given.get(maker) if maker in movers else activation_spec(asked, decided, maker, value)
            if spec is not None and (node not in given or spec.bits > given[node].bits):
                given[node] = spec
    return given


def without_kernel(decided: Decisions) -> list[ir.Node]:
    """Nodes that have no integer kernel for the width that they would have to hand on."""
    return [node for node, spec in decided.carried.items() if spec.bits not in decided.rules[node].act_bits]


def _outputs(decided: Decisions, node: ir.Node) -> list[ir.Value]:
    return [decided.output(node), *node.outputs[1:]]


def _makers(decided: Decisions, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Node]]:
    """What a node reads, with the nodes in integers that make it."""
    for value in activations_read(decided.rules[node], node):
        maker = value.producer()
        maker = decided.absorbed.get(maker, maker) if maker is not None else None
        if maker is not None and maker in decided.rules:
            yield value, maker
