"""Graph and table in, plan out: candidates by the target's rows, placement by cost, then sites and ties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.groups import find_groups
from onnxq.graph.values import is_constant, static_shape
from onnxq.options import Options
from onnxq.placement import cheapest, elements
from onnxq.plan import Edge, Kept, Plan, Role, Site
from onnxq.selection import Selection, with_symmetry
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = ["make_plan"]

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_REORDERINGS = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "DepthToSpace", "SpaceToDepth"}
)
_LEAST_STORED = 1024
"""Elements from which the weight of a float layer is stored as integers."""
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "FakeQuantize", "NNIEQuantize"})
_IN_INTEGERS = frozenset(
    {"ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"}
    | {"MatMulBnb4", "MatMulNBits", "QAttention", "QGemm", "Quant"}
)
"""Operators that compute with integers or quantize already, besides all whose name begins with QLinear."""


def make_plan(
    model: ir.Model,
    backend: Backend,
    options: Options | None = None,
    *,
    keep_float: Mapping[str, str] | None = None,
    unusable: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Plan:
    """Decide what is quantized how, what is tied, and what stays float and why.

    Args:
        model: a normalized model (see :func:`onnxq.graph.normalize.normalize`).
        backend: the target.
        options: bits, symmetry, granularity, exclusions and placement.
        keep_float: node name → reason, for nodes that data has shown to be hurt by quantization; ``include`` wins.
        unusable: node name → reason, for nodes that have no numbers to be quantized with, asked for or not.
        sizes: tensor name → number of elements, where data has shown it; else the shapes in the model are used.

    Raises:
        OptionError: a pattern of the options matches nothing.
    """
    return _Planner(model, backend, options or Options(), keep_float or {}, unusable or {}, sizes or {}).run()


@dataclass(slots=True)
class _SiteDraft:
    tensor: ir.Value
    role: Role
    spec: QuantSpec
    readers: list[Edge] = field(default_factory=list)
    produced: bool = False
    tied_to: _SiteDraft | None = None
    fixed: tuple[float, float] | None = None
    factors: tuple[_SiteDraft, _SiteDraft] | None = None
    name: str = ""

    @property
    def root(self) -> _SiteDraft:
        return self if self.tied_to is None else self.tied_to.root


class _Planner:
    def __init__(
        self,
        model: ir.Model,
        backend: Backend,
        options: Options,
        keep_float: Mapping[str, str],
        unusable: Mapping[str, str],
        sizes: Mapping[str, int],
    ) -> None:
        self.model, self.backend, self.options, self.sizes = model, backend, options, sizes
        self.weight_bits, self.act_bits = backend.bits(options)
        by_cost = options.placement == "auto" and not backend.by_cost
        self.placement = "all" if by_cost else options.placement
        self.nodes = list(model.graph.all_nodes())
        self.rules: dict[ir.Node, OpRule] = {}
        self.stored: dict[ir.Node, OpRule] = {}
        self.absorbed: dict[ir.Node, ir.Node] = {}  # activation function -> node
        self.absorbs: dict[ir.Node, ir.Node] = {}
        self.kept: dict[ir.Node, str] = {}
        self.drafts: dict[tuple[ir.Value, Role, QuantSpec, int], _SiteDraft] = {}
        self.output_makers: set[ir.Node] = set()
        self.selection = Selection(model, self.nodes, options)
        forced = {n.name for n in self.nodes if self.selection.forced(n)}
        self.keep_float = {**{name: why for name, why in keep_float.items() if name not in forced}, **unusable}

    def run(self) -> Plan:
        self._candidates()
        self._absorb()
        self._place()
        for node in self.nodes:
            if node in self.rules:
                self._sites_of(node, self.rules[node])
            elif node in self.stored:
                self._weight_sites(node, self.stored[node])
            elif node in self.absorbed and (rule := self._rule(node)) is not None:
                self._weight_sites(node, rule)
        self._tie_outputs()
        return self._finish()

    # -- which nodes

    def _candidates(self) -> None:
        groups = [group for group in find_groups(self.model) if group.kind in self.backend.whole]
        inside = {n: group.kind for group in groups for n in group.nodes}
        for node in self.nodes:
            if node.op_type in _QUANTIZERS:
                continue
            if node.op_type in _IN_INTEGERS or node.op_type.startswith("QLinear"):
                self.kept[node] = "already quantized in the input model"
                continue
            if not _touches_float(node):
                continue
            reason, rule = self._why_not(node, inside.get(node))
            if reason is None and rule is not None:
                self.rules[node] = rule
            elif reason is not None:
                self.kept[node] = reason

    def _why_not(self, node: ir.Node, group: str | None) -> tuple[str | None, OpRule | None]:
        """Reason why a node stays float, or its rule."""
        rule = self._rule(node)
        if node in self.selection.excluded:
            return f"excluded by {self.selection.excluded[node]!r}", None
        if self.selection.included is not None and node not in self.selection.included:
            return "not among what 'include' names", None
        if node.name and node.name in self.keep_float:
            return self.keep_float[node.name], None
        if any(v is not None and _is_dequantized(v) for v in node.inputs):
            return "already quantized in the input model", None
        if group is not None:
            return f"part of a {group}, kept whole", None
        if rule is None:
            where = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            return f"{where} is none of the operators that {self.backend.name} quantizes", None
        for position, value in enumerate(node.inputs):
            if (
                value is not None
                and position in _positions(rule, node)
                and value.dtype not in (ir.DataType.FLOAT, None)
            ):
                return f"input {value.name!r} is {str(value.dtype).lower()}, not float32", None
            if value is not None and position in _positions(rule, node) and value.dtype is None:
                return f"the type of input {value.name!r} is unknown", None
        constants = [p for p in rule.weights if p < len(node.inputs) and is_constant(node.inputs[p])]
        if rule.kind in (Kind.COMPUTE, Kind.WEIGHT_ONLY) and not constants:
            product = self.backend.rules.get(f"{node.op_type}:product")
            if product is None:
                return _why_no_weight(node, rule), None
            rule = product
        if (bits := self._activation(node, node.outputs[0]).bits) not in rule.act_bits:
            return f"{node.op_type} has no integer kernel for {bits} bits on {self.backend.name}", None
        if rule.data is None and all(is_constant(v) for v in node.inputs if v is not None):
            return "all its inputs are constants", None
        if rule.when is not None and (why := rule.when(node)) is not None:
            return why, None
        return None, rule

    def _rule(self, node: ir.Node) -> OpRule | None:
        """The row for a node: the one for a constant first input (``"Gather:constant"``) where there is one."""
        if node.domain not in ("", "ai.onnx"):
            return None
        rules = self.backend.rules
        if node.inputs and is_constant(node.inputs[0]) and f"{node.op_type}:constant" in rules:
            return rules[f"{node.op_type}:constant"]
        return rules.get(node.op_type)

    def _absorb(self) -> None:
        """Pair activation functions with the integer candidate before them where nothing else reads what is between."""
        for node in self.nodes:
            if node.op_type not in self.backend.absorbed or node.domain not in ("", "ai.onnx"):
                continue
            source = node.inputs[0] if node.inputs else None
            producer = source.producer() if source is not None else None
            if producer is not None and node in self.rules and self._left_alone(producer, node):
                del self.rules[node]
                self.kept[node] = "the operator before it stays float"
            if (
                source is None
                or producer is None
                or node in self.selection.excluded
                or node.name in self.keep_float
                or producer not in self.rules
                or self.rules[producer].kind not in (Kind.COMPUTE, Kind.ELEMENTWISE, Kind.PRODUCT)
                or (self.backend.drops_absorbed and not self.rules[producer].output)
                or not self._together(producer, node)
                or producer in self.absorbs
                or producer.graph is not node.graph
                or source.is_graph_output()
                or len(source.uses()) != 1
                or any(v is not None and not is_constant(v) for v in node.inputs[1:])
            ):
                continue
            self.absorbed[node], self.absorbs[producer] = producer, node
            self.rules.pop(node, None)

    def _together(self, producer: ir.Node, function: ir.Node) -> bool:
        """Whether the target computes an activation function together with the operator before it."""
        if self.backend.absorbs is not None:
            return self.backend.absorbs(producer, function)
        return self.rules[producer].fixed is None

    def _left_alone(self, producer: ir.Node, function: ir.Node) -> bool:
        """Whether the operator that the target computes an activation function together with stays float.

        Data has not seen the tensor between the two where both were to be quantized at first.
        """
        if producer in self.rules or self._rule(producer) is None:
            return False
        return producer.name in self.keep_float if self.backend.absorbs is None else self._together(producer, function)

    def _place(self) -> None:
        rules, mode = self.rules, self.placement
        forced = {n for n in rules if self.selection.forced(n)}
        free = {n: r for n, r in rules.items() if r.kind is not Kind.WEIGHT_ONLY}
        for node in rules.keys() - free.keys():
            self._store(node, f"{node.op_type} has no integer kernel on {self.backend.name}")
        if mode == "all":
            chosen = set(free)
        elif mode == "compute":
            chosen = {n for n, r in free.items() if r.kind is Kind.COMPUTE} | forced
            reason = "not a multiply-accumulate with constant weights (placement 'compute')"
        else:
            candidates = {n: r for n, r in free.items() if r.kind is not Kind.PRODUCT or n in forced}
            self.output_makers = self._output_makers()
            held = self.output_makers - forced
            candidates = {n: r for n, r in candidates.items() if n not in held}
            chosen = cheapest(self.backend, candidates, self._output, self.absorbed.keys(), forced, self._size)
        for node, rule in free.items():
            if node in chosen:
                continue
            if mode == "auto" and rule.kind is Kind.PRODUCT:
                reason = "product of two activations: integers gain nothing here"
            elif node in self.output_makers:
                reason = "it computes a model output, which stays float"
            elif mode == "auto":
                reason = "slower in integers here, with the conversions around it"
            self._store(node, reason)
        for node in list(self.absorbed):
            if self.absorbed[node] not in chosen:
                del self.absorbs[self.absorbed.pop(node)]
                self.kept.setdefault(node, "the operator before it stays float")
            else:
                self.kept.pop(node, None)
        self.rules = {n: r for n, r in rules.items() if n in chosen}

    def _store(self, node: ir.Node, reason: str) -> None:
        """Keep a node's arithmetic float, and store its weights as integers where that makes the file smaller."""
        rule = self.rules[node]
        weights = [v for p in rule.weights if p < len(node.inputs) and is_constant(v := node.inputs[p])]
        least = 0 if self.placement == "all" or self.selection.forced(node) else _LEAST_STORED
        large = any(elements(v) >= least for v in weights if v is not None)
        if large and self.backend.stores_weights:
            self.stored[node] = rule
        self.kept[node] = reason

    def _size(self, value: ir.Value) -> int:
        return self.sizes.get(value.name or "") or elements(value)

    def _output_makers(self) -> set[ir.Node]:
        """Nodes other than multiply-accumulates that compute a model output, moved about behind them or not."""
        found: set[ir.Node] = set()
        for node in reversed(self.nodes):
            if node not in self.rules or self.rules[node].kind is Kind.COMPUTE:
                continue
            value = self._output(node)
            readers = {use.node for use in value.uses()}
            only_moved = readers <= found and all(self.rules[r].kind is Kind.MOVEMENT for r in readers)
            if value.is_graph_output() or (readers and only_moved):
                found.add(node)
        return found

    def _output(self, node: ir.Node) -> ir.Value:
        """The tensor behind a node and the activation function it absorbed."""
        return self.absorbs.get(node, node).outputs[0]

    # -- which sites

    def _sites_of(self, node: ir.Node, rule: OpRule) -> None:
        data: list[_SiteDraft] = []
        weights: list[_SiteDraft] = []
        for position in _positions(rule, node):
            value = node.inputs[position]
            if value is None:
                continue
            edge = Edge(node.name or "", position)
            if position in rule.weights and is_constant(value):
                draft = self._draft(value, "weight", self._weight(node, rule, position, value))
                weights.append(draft)
            else:
                role: Role = "constant" if is_constant(value) else "activation"
                if role == "constant" and not self._quantizes_constant(value):
                    continue
                own = rule.activation(value) if callable(rule.activation) else rule.activation
                draft = self._draft(value, role, self._activation(node, value, own))
                data.append(draft)
            draft.readers.append(edge)
        bias = node.inputs[rule.bias] if rule.bias is not None and rule.bias < len(node.inputs) else None
        if (
            bias is not None
            and self.backend.bias != "float"
            and data
            and weights
            and is_constant(bias)
            and _is_row(bias, weights[0])
        ):
            its = self.backend.bias if isinstance(self.backend.bias, QuantSpec) else None
            spec = its or QuantSpec(bits=32, granularity=_bias_granularity(weights[0].spec, bias))
            draft = self._draft(bias, "bias", spec, key=len(self.drafts))
            if its is None and weights[0].spec.bits <= 8:
                draft.factors = (data[0], weights[0])
            draft.readers.append(Edge(node.name or "", rule.bias or 0))

    def _quantizes_constant(self, value: ir.Value) -> bool:
        which = self.backend.constants
        return which == "all" or (which == "tensors" and elements(value) != 1)

    def _weight_sites(self, node: ir.Node, rule: OpRule) -> None:
        for position in rule.weights:
            value = node.inputs[position] if position < len(node.inputs) else None
            if value is not None and is_constant(value):
                draft = self._draft(value, "weight", self._weight(node, rule, position, value))
                draft.readers.append(Edge(node.name or "", position))

    def _tie_outputs(self) -> None:
        """Quantizers behind producers; data movement shares the scale of its input. In the order of the graph."""
        for node in self.nodes:
            rule = self.rules.get(node)
            if rule is None:
                continue
            outputs = [self._output(node)] if rule.kind is not Kind.MOVEMENT else list(node.outputs)
            for value in outputs:
                if not value.name or value.dtype is not ir.DataType.FLOAT:
                    continue
                spec = self._activation(node, value)
                key = (value, "activation", spec, 0)
                if not rule.output and (key not in self.drafts or value.is_graph_output()):
                    continue
                draft = self._draft(value, "activation", spec)
                draft.produced = not self.backend.inputs_only
                draft.fixed = rule.fixed
                if rule.kind is Kind.MOVEMENT and node.inputs[0] is not None:
                    draft.tied_to = self.drafts.get((node.inputs[0], "activation", spec, 0))
                if rule.same_scale:
                    self._share(node, rule, draft)

    def _share(self, node: ir.Node, rule: OpRule, output: _SiteDraft) -> None:
        """Let the activations that a node reads have the scale of its output."""
        for position in _positions(rule, node):
            value = node.inputs[position]
            role: Role = "constant" if is_constant(value) else "activation"
            draft = self.drafts.get((value, role, output.spec, 0)) if value is not None else None
            if draft is not None and draft.root is not output.root:
                draft.root.tied_to = output.root

    def _draft(self, value: ir.Value, role: Role, spec: QuantSpec, key: int = 0) -> _SiteDraft:
        return self.drafts.setdefault((value, role, spec, key), _SiteDraft(value, role, spec))

    def _weight(self, node: ir.Node, rule: OpRule, position: int, value: ir.Value) -> QuantSpec:
        per_channel = self.backend.per_channel if self.options.per_channel is None else self.options.per_channel
        wanted = self.selection.per_channel(per_channel, node, value)
        axis = rule.weight_axis(node, position) if rule.weight_axis and wanted else None
        granularity = PerTensor() if axis is None else PerChannel(axis)
        own = rule.weight or self.backend.weight
        spec = replace(own, bits=self._least_bits(self.weight_bits, node), granularity=granularity)
        spec = self.selection.weight(spec, node, value)
        return spec if spec.bits in rule.weight_bits else replace(spec, bits=own.bits)

    def _least_bits(self, bits: int, node: ir.Node) -> int:
        """The width asked for, or that of the model's first and last layers where the target gives them more."""
        least = self.backend.first_last_bits
        if least is None or bits >= least or node not in self.rules:
            return bits
        first = any(v is not None and v.is_graph_input() for v in node.inputs)
        return least if first or self._output(node).is_graph_output() else bits

    def _activation(self, node: ir.Node, value: ir.Value, own: QuantSpec | None = None) -> QuantSpec:
        options = self.options
        bits = self._least_bits(self.act_bits, node) if value in node.inputs else self.act_bits
        spec = replace(own or self.backend.activation, bits=bits, range=options.range)
        if options.symmetric is not None:
            spec = with_symmetry(spec, options.symmetric)
        spec = self.selection.activation(spec, node, value)
        return replace(spec, signed=False) if self.backend.unsigned else spec

    # -- the result

    def _finish(self) -> Plan:
        order: dict[ir.Value, int] = {}
        for value in _values(self.model, self.nodes):
            order.setdefault(value, len(order))
        drafts = sorted(self.drafts.values(), key=lambda d: order.get(d.tensor, len(order)))
        taken: set[str] = set()
        for draft in drafts:
            base = draft.tensor.name or ""
            draft.name, count = base, 1
            while draft.name in taken:
                count += 1
                draft.name = f"{base}#{count}"
            taken.add(draft.name)
        sites = tuple(
            Site(
                name=d.name,
                tensor=d.tensor.name or "",
                role=d.role,
                spec=d.spec,
                readers=tuple(d.readers),
                produced=d.produced,
                tied_to=d.tied_to.name if d.tied_to else None,
                fixed=d.fixed,
                factors=(d.factors[0].name, d.factors[1].name) if d.factors else None,
                source=_source(d.tensor).name or "",
            )
            for d in drafts
        )
        return Plan(
            backend=self.backend.name,
            sites=sites,
            quantized={n.name or "": n.op_type for n in self.nodes if n in self.rules},
            stored={n.name or "": n.op_type for n in self.nodes if n in self.stored},
            absorbed={n.name or "": into.name or "" for n, into in self.absorbed.items()},
            kept_float=tuple(Kept(n.name or "", n.op_type, why) for n in self.nodes if (why := self.kept.get(n))),
        )


def _source(value: ir.Value) -> ir.Value:
    """The tensor that holds the same numbers in another order, as far up as reorderings go."""
    while (node := value.producer()) is not None and node.op_type in _REORDERINGS and node.domain in ("", "ai.onnx"):
        before = node.inputs[0]
        if before is None or is_constant(before):
            break
        value = before
    return value


def _positions(rule: OpRule, node: ir.Node) -> Iterable[int]:
    """Positions of a node's inputs that its rule speaks of, except the bias."""
    if rule.data is None:
        return range(len(node.inputs))
    data = rule.data(node) if callable(rule.data) else rule.data
    return sorted(p for p in {*data, *rule.weights} if p < len(node.inputs))


def _is_dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type in _QUANTIZERS


def _why_no_weight(node: ir.Node, rule: OpRule) -> str:
    for value in (node.inputs[p] for p in rule.weights if p < len(node.inputs)):
        if value is not None and value.is_graph_input() and value.const_value is not None:
            return f"its weight {value.name!r} is also a graph input, which may replace it"
    return "its weight is computed at run time"


def _touches_float(node: ir.Node) -> bool:
    return any(v is not None and v.dtype in _FLOATS for v in node.inputs) and any(
        v.dtype in _FLOATS or v.dtype is None for v in node.outputs
    )


def _is_row(bias: ir.Value, weight: _SiteDraft) -> bool:
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


def _bias_granularity(weight: QuantSpec, bias: ir.Value) -> PerTensor | PerChannel:
    if isinstance(weight.granularity, PerChannel) and bias.shape is not None:
        return PerChannel(len(bias.shape) - 1)
    return PerTensor()


def _values(model: ir.Model, nodes: Iterable[ir.Node]) -> Iterable[ir.Value]:
    yield from model.graph.inputs
    for node in nodes:
        yield from (v for v in node.inputs if v is not None and v.producer() is None)
        yield from node.outputs
