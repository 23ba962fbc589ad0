"""What the options ask of single nodes and tensors: exclusions, inclusions and overrides, resolved on one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import LEFT_ALONE
from onnxq.options import Options, Override, patterns
from onnxq.spec import QuantSpec

__all__ = ["Selection", "mark_excluded", "with_symmetry"]


def with_symmetry(spec: QuantSpec, symmetric: bool) -> QuantSpec:
    """An activation's spec made symmetric (signed, zero point 0) or asymmetric (unsigned); unchanged if it is so."""
    return spec if spec.symmetric == symmetric else replace(spec, symmetric=symmetric, signed=symmetric)


def mark_excluded(model: ir.Model, options: Options) -> None:
    """Mark the nodes that the options keep float, in place, for a target's rewrites.

    A pattern that matches nothing here may name what a rewrite makes: the plan refuses it if it does not.
    """
    wanted = [*options.exclude, *(pattern for pattern, change in options.override if change.float)]
    names = patterns.names_of(model) if wanted else None
    for pattern in wanted:
        try:
            (match,) = patterns.match([pattern], names) if names is not None else []
        except OptionError:
            continue
        for node in all_nodes(model):
            if match.node(node):
                node.meta[LEFT_ALONE] = True


class Selection:
    """The patterns of the options, matched.

    Args:
        model: a normalized model.
        nodes: its nodes, subgraphs included.
        options: the options.

    Attributes:
        excluded: node → the pattern that keeps it float.
        included: the nodes named by ``include``; ``None`` where nothing was named and all are meant.

    Raises:
        OptionError: a pattern matches nothing.
    """

    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], options: Options) -> None:
        self.excluded: dict[ir.Node, str] = {}
        self.included: set[ir.Node] | None = None
        self._overrides: list[Override] = []
        self._of_node: dict[str, list[int]] = {}
        self._of_tensor: dict[str, list[int]] = {}
        if not (options.exclude or options.include or options.override):
            return
        names = patterns.names_of(model)
        for match in patterns.match(options.exclude, names, option="exclude"):
            self._exclude(match, nodes)
        if options.include:
            matches = patterns.match(options.include, names, option="include")
            self.included = {n for n in nodes if any(m.node(n) for m in matches)}
        found = patterns.match([pattern for pattern, _ in options.override], names, option="override")
        for match, (_, change) in zip(found, options.override, strict=True):
            if change.float:
                self._exclude(match, nodes)
            for known, of in ((self._of_node, match.nodes), (self._of_tensor, match.tensors)):
                for name in of:
                    known.setdefault(name, []).append(len(self._overrides))
            self._overrides.append(change)

    def _exclude(self, match: patterns.Match, nodes: Sequence[ir.Node]) -> None:
        for node in nodes:
            if match.node(node) or any(v is not None and v.name in match.tensors for v in node.inputs):
                self.excluded.setdefault(node, match.pattern)

    def why_out(self, node: ir.Node) -> str | None:
        """Why the options leave a node in float; ``None`` where they do not."""
        if node in self.excluded:
            return f"excluded by {self.excluded[node]!r}"
        if self.included is not None and node not in self.included:
            return "not among what 'include' names"
        return None

    def forced(self, node: ir.Node) -> bool:
        """Whether the node was asked for by name, and so is quantized whatever it costs."""
        return self.included is not None and node in self.included

    def weight(self, spec: QuantSpec, node: ir.Node, value: ir.Value) -> QuantSpec:
        """The spec of a node's weight with the overrides that match the node or the tensor; the last one wins."""
        return replace(spec, bits=self.weight_bits(node, value) or spec.bits)

    def weight_bits(self, node: ir.Node, value: ir.Value) -> int | None:
        """The width that an override asks for of a node's weight; ``None`` where none does."""
        found = (change.weight_bits for change in reversed(self._changes(node, value)))
        return next((bits for bits in found if bits is not None), None)

    def per_channel(self, default: bool, node: ir.Node, value: ir.Value) -> bool:
        """Whether a node's weight has a scale per channel."""
        for change in self._changes(node, value):
            if change.per_channel is not None:
                default = change.per_channel
        return default

    def weight_symmetric(self, default: bool | None, node: ir.Node, value: ir.Value) -> bool | None:
        """Whether a node's weight is symmetric; None where neither the options nor an override say so."""
        for change in self._changes(node, value):
            if change.weight_symmetric is not None:
                default = change.weight_symmetric
        return default

    def activation(self, spec: QuantSpec, node: ir.Node, value: ir.Value) -> QuantSpec:
        """The spec of a tensor that a node reads or writes, with the overrides that match either."""
        for change in self._changes(node, value):
            if change.act_bits is not None:
                spec = replace(spec, bits=change.act_bits)
            if change.range is not None:
                spec = replace(spec, range=change.range)
            if change.symmetric is not None:
                spec = with_symmetry(spec, change.symmetric)
        return spec

    def _changes(self, node: ir.Node, value: ir.Value) -> list[Override]:
        """The overrides whose pattern names the node, by its name or op type, or the tensor, in their order."""
        found = {*self._of_node.get(node.name or "", ()), *self._of_tensor.get(value.name or "", ())}
        return [self._overrides[index] for index in sorted(found)]
