"""Where quantizers stand: sites of the inputs of integer nodes, of their outputs, and the ties between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.graph.values import SAME_NUMBERS, constant_array, input_of, is_constant, static_shape
from onnxq.plan import Edge, Role, Site
from onnxq.planning.placement import elements
from onnxq.planning.question import Decisions, Question
from onnxq.planning.specs import activation_spec, bias_spec, weight_spec
from onnxq.planning.table_rows import activations_read, positions, row
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["REORDERINGS", "activations", "make_sites"]

REORDERINGS = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "DepthToSpace", "SpaceToDepth"}
)
_WHOLE = frozenset({"Concat", "Pad"})
"""Operators whose output holds every number that they read."""


def make_sites(asked: Question, decided: Decisions) -> tuple[Site, ...]:
    """The sites of all nodes that were decided on, in the order of the graph."""
    drafts = _Drafts(asked, decided)
    for node in asked.nodes:
        if node in decided.rules:
            drafts.add_inputs(node, decided.rules[node])
        elif node in decided.stored:
            drafts.add_weights(node, decided.stored[node])
        elif node in decided.absorbed and (rule := row(asked.backend, node)) is not None:
            drafts.add_weights(node, rule)
    drafts.add_outputs()
    return drafts.sites()


def activations(decided: Decisions) -> set[str]:
    """The ``source`` of every activation among the sites that :func:`make_sites` would give, far sooner than these."""
    found: set[ir.Value] = set()
    for node, rule in decided.rules.items():
        found.update(activations_read(rule, node))
        if rule.needs_output(node):  # any other output is a site only where it is read as one
            found.update(_written(decided, node, rule))
    return {_seen_as(_source(value)) for value in found}


@dataclass(slots=True)
class _Draft:
    """A site in the making: still tied by reference, not yet named."""

    tensor: ir.Value
    role: Role
    spec: QuantSpec
    readers: list[Edge] = field(default_factory=list)
    produced: bool = False
    tied_to: _Draft | None = None
    fixed: tuple[float, float] | None = None
    factors: tuple[_Draft, _Draft] | None = None
    spans: list[ir.Value] = field(default_factory=list)
    own: bool = False
    name: str = ""
    above: _Draft | None = None

    @property
    def root(self) -> _Draft:
        """The last of those that it is tied to; those on the way keep it in ``above``, from where it goes on later."""
        top, passed = self, []
        while top.tied_to is not None:
            passed.append(top)
            top = top.above or top.tied_to
        for draft in passed:
            draft.above = top
        return top

    def site(self) -> Site:
        return Site(
            name=self.name,
            tensor=self.tensor.name or "",
            role=self.role,
            spec=self.spec,
            readers=tuple(self.readers),
            produced=self.produced,
            tied_to=self.tied_to.name if self.tied_to else None,
            fixed=self.fixed,
            factors=(self.factors[0].name, self.factors[1].name) if self.factors else None,
            source=_seen_as(_source(self.tensor)),
            spans=tuple(dict.fromkeys(_seen_as(_source(tensor)) for tensor in self.spans)),
        )


class _Drafts:
    """Drafts by tensor, role and spec, so that readers who want the same of a tensor share one."""

    def __init__(self, asked: Question, decided: Decisions) -> None:
        self._asked, self._decided = asked, decided
        self._made: dict[tuple[ir.Value, Role, QuantSpec, int], _Draft] = {}

    def _draft(self, value: ir.Value, role: Role, spec: QuantSpec, key: int = 0) -> _Draft:
        return self._made.setdefault((value, role, spec, key), _Draft(value, role, spec))

    def add_inputs(self, node: ir.Node, rule: OpRule) -> None:
        """Data, constants, weights and bias of a node that runs in integers."""
        data: list[_Draft] = []
        weights: list[_Draft] = []
        for position in positions(rule, node):
            value = node.inputs[position]
            if value is None:
                continue
            if position in rule.weights and is_constant(value):
                weights.append(self._add_weight(node, rule, position, value))
                continue
            role = _role(value)
            if role == "constant" and not self._quantizes_constant(value):
                continue
            spec = activation_spec(self._asked, self._decided, node, value, rule.reads(value))
            data.append(self._draft(value, role, spec))
            data[-1].readers.append(Edge(node.name or "", position))
        if data and weights:
            self._add_bias(node, rule, data[0], weights[0])

    def add_weights(self, node: ir.Node, rule: OpRule) -> None:
        """The constant weights of a node, and nothing else of it."""
        for position in rule.weights:
            value = input_of(node, position)
            if value is not None and is_constant(value):
                self._add_weight(node, rule, position, value)

    def _add_weight(self, node: ir.Node, rule: OpRule, position: int, value: ir.Value) -> _Draft:
        spec = weight_spec(self._asked, self._decided, node, rule, position, value)
        draft = self._draft(value, "weight", spec)
        draft.readers.append(Edge(node.name or "", position))
        return draft

    def _add_bias(self, node: ir.Node, rule: OpRule, data: _Draft, weight: _Draft) -> None:
        how = self._asked.backend.bias
        bias = input_of(node, rule.bias)
        if bias is None or how == "float" or not is_constant(bias) or not _is_row(bias, weight):
            return
        own = how if isinstance(how, QuantSpec) else None
        if own is None and not self._asked.backend.rounds_bias(data.spec.bits):
            return
        draft = self._draft(bias, "bias", own or bias_spec(weight.spec, bias), key=len(self._made))
        if own is None and weight.spec.bits <= 8:
            draft.factors = (data, weight)
        draft.readers.append(Edge(node.name or "", rule.bias or 0))

    def _quantizes_constant(self, value: ir.Value) -> bool:
        which = self._asked.backend.constants
        return which == "all" or (which == "tensors" and elements(value) != 1)

    def add_outputs(self) -> None:
        """Quantizers behind producers; data movement shares the scale of its input. In the order of the graph."""
        for node in self._asked.nodes:
            rule = self._decided.rules.get(node)
            if rule is not None:
                for value in _written(self._decided, node, rule):
                    self._add_output(node, rule, value)

    def _add_output(self, node: ir.Node, rule: OpRule, value: ir.Value) -> None:
        spec = activation_spec(self._asked, self._decided, node, value)
        if not rule.needs_output(node) and (
            (value, "activation", spec, 0) not in self._made or value.is_graph_output()
        ):
            return
        draft = self._draft(value, "activation", spec)
        draft.produced = not self._asked.backend.inputs_only
        draft.fixed, draft.own = rule.fixed, rule.own_scale
        if rule.kind is Kind.MOVEMENT and node.inputs[0] is not None:
            draft.tied_to = self._made.get((node.inputs[0], _role(node.inputs[0]), spec, 0))
        if rule.shares(node):
            self._share(node, rule, draft)

    def _share(self, node: ir.Node, rule: OpRule, output: _Draft) -> None:
        """Let the activations that a node reads have the scale of its output.

        That of the output alone holds what a Concat or Pad reads as a whole. Where a part is read of what has the same
        scale, or another Concat has tied a tensor already, the scale has to hold that as well.
        """
        for position in positions(rule, node):
            value = node.inputs[position]
            draft = self._made.get((value, _role(value), output.spec, 0)) if value is not None else None
            if draft is not None and draft.root is not output.root and not draft.root.own:
                before, root = draft.root, output.root
                whole = _reads_whole(node) and _source(before.tensor) is _source(draft.tensor)
                held = whole or draft.role == "constant"
                root.spans += [*(() if held else (before.tensor,)), *before.spans]
                before.tied_to, before.spans = root, []

    def sites(self) -> tuple[Site, ...]:
        """The drafts as sites with names of their own, in the order of the graph."""
        order: dict[ir.Value, int] = {}
        for value in _values(self._asked):
            order.setdefault(value, len(order))
        drafts = sorted(self._made.values(), key=lambda d: order.get(d.tensor, len(order)))
        taken: set[str] = set()
        for draft in drafts:
            base = draft.tensor.name or ""
            draft.name, count = base, 1
            while draft.name in taken:
                count += 1
                draft.name = f"{base}#{count}"
            taken.add(draft.name)
        return tuple(draft.site() for draft in drafts)


def _written(decided: Decisions, node: ir.Node, rule: OpRule) -> Sequence[ir.Value]:
    """The outputs of a node that may have a quantizer behind them."""
    outputs = node.outputs if rule.kind is Kind.MOVEMENT else (decided.output(node),)
    return [value for value in outputs if value.name and value.dtype is ir.DataType.FLOAT]


def _role(value: ir.Value) -> Role:
    """The role of what an operator reads as data."""
    return "constant" if is_constant(value) else "activation"


def _reads_whole(node: ir.Node) -> bool:
    """Whether an output holds all that a node reads: not a Pad that cuts off, or whose pads nobody knows."""
    pads = constant_array(input_of(node, 1)) if node.op_type == "Pad" else None
    return node.op_type in _WHOLE and (node.op_type != "Pad" or (pads is not None and not (pads < 0).any()))


def _source(value: ir.Value) -> ir.Value:
    """The tensor that holds the same numbers in another order, as far up as reorderings go."""
    while (node := value.producer()) is not None and node.op_type in REORDERINGS and node.domain == "":
        before = node.inputs[0]
        if before is None or is_constant(before):
            break
        value = before
    return value


def _seen_as(value: ir.Value) -> str:
    """The name under which calibration has seen the numbers of a tensor."""
    return str(value.meta.get(SAME_NUMBERS, value.name or ""))


def _is_row(bias: ir.Value, weight: _Draft) -> bool:
    """Whether a bias has one value for each output channel: shape (), (1,), (N,) or (1, N)."""
    dims = static_shape(bias)
    if dims is None:
        return False
    if len(dims) == 2 and dims[0] != 1:
        return False
    shape = weight.tensor.shape
    granularity = weight.spec.granularity
    if isinstance(granularity, PerChannel) and shape is not None:
        return bool(dims) and dims[-1] == shape[granularity.axis]
    return len(dims) <= 2


def _values(asked: Question) -> Iterable[ir.Value]:
    yield from asked.model.graph.inputs
    for node in asked.nodes:
        yield from (v for v in node.inputs if v is not None and v.producer() is None)
        yield from node.outputs
