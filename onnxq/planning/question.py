"""What is asked of a plan, and what has been decided of its nodes so far."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import onnx_ir as ir

from onnxq.backend import Backend, OpRule
from onnxq.for_processor import for_processor
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.planning.placement import elements
from onnxq.spec import QuantSpec

__all__ = ["Decisions", "Question"]


@dataclass(frozen=True, slots=True)
class Question:
    """Everything a plan follows from.

    Attributes:
        model: a normalized model.
        backend: the target.
        options: bits, symmetry, granularity, exclusions.
        nodes: those of the model, subgraphs included, in the order of the graph.
        selection: the patterns of the options, matched.
        weight_bits: width of weights.
        act_bits: width of activations.
        placement: what the options ask for; ``all`` for ``auto`` on a target that has no table of costs.
        keep_float: node name → reason; without the nodes that were asked for by name, unless they have no numbers.
        sizes: tensor name → number of elements, where data has shown it.
        wide: names of float layers whose weights, where they are stored as integers, take 16 bits.
        groups: nodes that together compute one function.
    """

    model: ir.Model
    backend: Backend
    options: Options
    nodes: tuple[ir.Node, ...]
    selection: Selection
    weight_bits: int
    act_bits: int
    placement: str
    keep_float: Mapping[str, str]
    sizes: Mapping[str, int]
    wide: Container[str | None]
    groups: Sequence[Group]

    @classmethod
    def of(
        cls,
        model: ir.Model,
        backend: Backend,
        options: Options,
        *,
        keep_float: Mapping[str, str] | None = None,
        unusable: Mapping[str, str] | None = None,
        sizes: Mapping[str, int] | None = None,
        wide: Container[str | None] = (),
        groups: Sequence[Group] | None = None,
    ) -> Question:
        """The question behind the arguments of :func:`onnxq.planning.planner.make_plan`.

        Raises:
            OptionError: a pattern of the options matches nothing.
        """
        weight_bits, act_bits = backend.bits(options)
        nodes = tuple(model.graph.all_nodes())
        selection = Selection(model, nodes, options)
        return cls(
            model=model,
            backend=for_processor(backend, options),
            options=options,
            nodes=nodes,
            selection=selection,
            weight_bits=weight_bits,
            act_bits=act_bits,
            placement="all" if options.placement == "auto" and not backend.by_cost else options.placement,
            keep_float=_in_float(selection, nodes, keep_float or {}, unusable or {}),
            sizes=sizes or {},
            wide=wide,
            groups=find_groups(model) if groups is None else groups,
        )

    def but(
        self, keep_float: Mapping[str, str], unusable: Mapping[str, str], wide: Container[str | None] = ()
    ) -> Question:
        """The same question with other nodes in float, and other weights of 16 bits; see :meth:`of`."""
        return replace(self, keep_float=_in_float(self.selection, self.nodes, keep_float, unusable), wide=wide)

    def size(self, value: ir.Value) -> int:
        """Number of elements of a tensor, as data has shown it or by its shape."""
        return self.sizes.get(value.name or "") or elements(value)


def _in_float(
    selection: Selection, nodes: Sequence[ir.Node], keep_float: Mapping[str, str], unusable: Mapping[str, str]
) -> dict[str, str]:
    """Node name → reason, of nodes that stay float: those asked for by name only where they have no numbers."""
    forced = {n.name for n in nodes if selection.forced(n)}
    return {n: why for n, why in keep_float.items() if n not in forced} | dict(unusable)


@dataclass(slots=True)
class Decisions:
    """What each node came to.

    Attributes:
        rules: nodes that run in integers (before the assignment: that could), with their rows of the target's table.
        stored: float nodes whose weights are stored as integers.
        absorbed: activation function → the node it is computed together with.
        absorbs: the same, the other way round.
        kept: float nodes → the reason.
        carried: nodes that hand on numbers finer than the options ask of them → how, see :mod:`onnxq.planning.carry`.
        widths: tensors → the least width of whatever reads or writes them, see :mod:`onnxq.planning.widths`.
    """

    rules: dict[ir.Node, OpRule] = field(default_factory=dict)
    stored: dict[ir.Node, OpRule] = field(default_factory=dict)
    absorbed: dict[ir.Node, ir.Node] = field(default_factory=dict)
    absorbs: dict[ir.Node, ir.Node] = field(default_factory=dict)
    kept: dict[ir.Node, str] = field(default_factory=dict)
    carried: dict[ir.Node, QuantSpec] = field(default_factory=dict)
    widths: dict[ir.Value, int] = field(default_factory=dict)

    def copy(self) -> Decisions:
        """The same decisions, to be changed."""
        return Decisions(*(dict(getattr(self, part.name)) for part in fields(self)))

    def output(self, node: ir.Node) -> ir.Value:
        """The tensor behind a node and the activation function it absorbed."""
        return self.absorbs.get(node, node).outputs[0]
