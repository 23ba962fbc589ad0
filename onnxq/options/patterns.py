"""Patterns that name parts of a model: node names, tensor names or op types, with wildcards.

A pattern is first compared as it stands, then as a shell wildcard (``*``, ``?``, ``[ab]``), so that names with brackets
need no escaping. Case matters. An op of another domain is also known as ``domain::Type``. Where a node is named like a
tensor or an op type, ``node:NAME`` is the node alone, and ``tensor:NAME`` the tensor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from onnxq.errors import OptionError
from onnxq.graph.traverse import full_type
from onnxq.graph.values import STANDS_FOR
from onnxq.suggest import nearest

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Match", "Names", "match", "meaning_one", "names_of"]


@dataclass(frozen=True)
class Names:
    """What can be named in a model.

    Attributes:
        nodes: node name → op type (``"Conv"`` or ``"domain::Type"``), in graph order.
        tensors: all tensor names, in graph order.
        former: node name → names, op types and tensors of the nodes of the file whose place it took.
    """

    nodes: Mapping[str, str]
    tensors: Sequence[str]
    former: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def of(self, node: str) -> Sequence[str]:
        """All that a node answers to."""
        op = self.nodes[node]
        return (node, op, op.rpartition("::")[2], *self.former.get(node, ()))


@dataclass(frozen=True)
class Match:
    """What one pattern matched.

    Attributes:
        pattern: the pattern.
        nodes: names of the nodes whose name or op type matched.
        tensors: tensor names that matched.
    """

    pattern: str
    nodes: frozenset[str] = field(default_factory=frozenset)
    tensors: frozenset[str] = field(default_factory=frozenset)

    def node(self, node: ir.Node) -> bool:
        """Whether the pattern names this node, by its name or op type, or by a tensor that it writes."""
        return node.name in self.nodes or any(value.name in self.tensors for value in node.outputs)


def meaning_one(names: Names) -> Callable[[str, str], str]:
    """A function of ``"node"`` or ``"tensor"`` and a name to the pattern that means it, whatever else has the name."""
    known = Counter(names.tensors)
    for node in names.nodes:
        known.update(set(names.of(node)))
    return lambda kind, name: name if known[name] == 1 else f"{kind}:{name}"


def names_of(model: ir.Model) -> Names:
    """All names of a model, subgraphs included. O(nodes)."""
    nodes: dict[str, str] = {}
    tensors: dict[str, None] = {}
    former: dict[str, Sequence[str]] = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in (*graph.inputs, *graph.initializers.values()):
            if value.name:
                tensors[value.name] = None
        for node in graph:
            if node.name:
                nodes[node.name] = full_type(node)
                if STANDS_FOR in node.meta:
                    former[node.name] = node.meta[STANDS_FOR]
            for value in node.outputs:
                if value.name:
                    tensors[value.name] = None
    return Names(nodes, list(tensors), former)


def match(patterns: Iterable[str], names: Names, *, option: str = "pattern") -> list[Match]:
    """Find what each pattern names, in the order given.

    Args:
        patterns: the patterns.
        names: what can be named, see `names_of`.
        option: the option they come from, for the message.

    Raises:
        OptionError: a pattern matches nothing; says the nearest names.
    """
    index, of_kind = _Index(names), cache(lambda kind: _Index(_KINDS[kind](names)))
    result = []
    for pattern in patterns:
        nodes, tensors = index.named(pattern)
        kind, _, name = pattern.partition(":")
        if not nodes and not tensors and kind in _KINDS and name:
            nodes, tensors = of_kind(kind).named(name)
        if not nodes and not tensors:
            former = (name for found in names.former.values() for name in found)
            known = dict.fromkeys((*names.nodes.values(), *names.nodes, *names.tensors, *former))
            hint = nearest(pattern, known, title="names") or "Run 'onnxq plan' to see the names of nodes and tensors."
            raise OptionError(f"{pattern!r} matches no node name, tensor name or op type", where=option, hint=hint)
        result.append(Match(pattern, nodes, tensors))
    return result


class _Index:
    """Names, to be looked up by many patterns."""

    def __init__(self, names: Names) -> None:
        self._answers: dict[str, list[str]] = {}
        for node in names.nodes:
            for name in set(names.of(node)):
                self._answers.setdefault(name, []).append(node)
        self._tensors = frozenset(names.tensors)

    def named(self, pattern: str) -> tuple[frozenset[str], frozenset[str]]:
        """The nodes and tensors that a pattern names, as it stands or else as a wildcard."""
        nodes = frozenset(self._answers.get(pattern, ()))
        tensors = self._tensors & {pattern}
        if nodes or tensors or _WILD.isdisjoint(pattern):
            return nodes, tensors
        wild = re.compile(translate(pattern)).match
        answering = (of for name, of in self._answers.items() if wild(name))
        return frozenset(chain.from_iterable(answering)), frozenset(filter(wild, self._tensors))


_WILD = frozenset("*?[")
_KINDS: Mapping[str, Callable[[Names], Names]] = {
    "node": lambda names: Names(dict.fromkeys(names.nodes, ""), ()),
    "tensor": lambda names: Names({}, names.tensors),
}
"""What ``KIND:`` in front of a pattern leaves of the names."""
