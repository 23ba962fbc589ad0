"""The numbers that a model was given, at the sites of a target's plan, and which of them the target has no grid for."""

from __future__ import annotations

from collections.abc import Container, Mapping, MutableMapping, Set
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.deploying.exact import hold_exact_constants
from onnxq.deploying.shared import averages, same_grid, share_grids
from onnxq.deploying.source import kind_of
from onnxq.deploying.unsigned_weights import unsigned_weights
from onnxq.deploying.zero_channels import one_zero_point
from onnxq.given.fitted import moved_scales
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.plan import Edge, Plan, Site
from onnxq.planning.sites import REORDERINGS
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.ranged import from_range
from onnxq.spec import PerChannel, PerTensor, QuantSpec, Scheme

__all__ = ["GivenNumbers"]

_PASSED_ON = REORDERINGS | {"Expand", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Tile"}
"""Operators that give numbers of their first input, in another order, some of them or several times."""

_ASYMMETRIC = "it is asymmetric"


@dataclass
class GivenNumbers:
    """What the model given has, asked for plan after plan.

    Attributes:
        source: the model given.
        target: the target.
        in_float: tensors that some nodes read past their quantizer.
        exact_as_uint8: sums of products with int8 overflow where the result runs, and with uint8 they do not.
        refused: tensor → why the target has no grid like the one given, of all plans so far.
        unsigned: sites of weights that are uint8 for that reason, in the last plan.
        amiss: one of those is that of an activation, with one scale, and no operator of the target has a grid like it:
            the model was made for another kind of target.
    """

    source: Quantized
    target: Backend
    in_float: Set[str]
    exact_as_uint8: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    unsigned: Set[str] = frozenset()
    amiss: bool = False

    def __post_init__(self) -> None:
        self._given: dict[tuple[str, str], QParams] = {}
        constants = all_constants(self.source.model)
        for site in self.source.plan.sites:
            found = self.source.qparams[site.name]
            found = one_zero_point(constants.get(site.tensor), found) if site.role == "weight" else found
            self._given.setdefault((kind_of(site.role), site.tensor), found)
        self._reading = self.source.plan.by_edge("activation")
        self._nodes = {node.name or "": node for node in all_nodes(self.source.model)}
        self._makers = {v.name or "": node for node in self._nodes.values() for v in node.outputs}

    def quantizes(self, tensor: str) -> bool:
        """Whether an activation has numbers here, and not for some of its readers alone, that are not refused."""
        return ("activation", tensor) in self._given and tensor not in self.refused and tensor not in self.in_float

    def moved(self, plan: Plan, numbers: Mapping[str, QParams]) -> dict[str, int]:
        """Tensors whose numbers in a plan are not those given, and how many of each; rounding does not count."""
        found = {}
        for site in plan.sites:
            given, now = self._of(site), numbers.get(site.name)
            if site.role != "bias" and given is not None and now is not None:
                count = moved_scales(_held(given, site.spec), now)
                if count:
                    found[site.tensor] = count
        return found

    @property
    def way_out(self) -> str:
        """How to make the model elsewhere, so that the target has a grid like each of those that are refused."""
        if all(why.startswith(_ASYMMETRIC) for why in self.refused.values()):
            return "symmetrically with the tool that made this one (onnxruntime: ActivationSymmetric, WeightSymmetric)"
        return "train with quantizers as onnxq writes them for it"

    def unused(self, plan: Plan) -> list[str]:
        """Tensors, not refused, whose numbers a plan has no use for."""
        held = {name for site in plan.sites for name in (site.tensor, self._before(site))} | self.refused.keys()
        return [name for kind, name in self._given if kind != "bias" and name not in held]

    def of(self, plan: Plan) -> tuple[dict[str, QParams], list[str]]:
        """Numbers by site name, and the tensors whose grid a tie has changed.

        Sites without are left out. Ties give them to each other, but not to one whose own are refused.
        """
        numbers: dict[str, QParams] = {}
        own: set[str] = set()
        for site in plan.sites:
            found = self._of(site)
            if site.role == "bias":
                numbers[site.name] = QParams(site.spec, np.float32(1.0).reshape(()), np.zeros((), np.int64))
            elif found is not None and (why := _refusal(site, found, self.target, plan)) is not None:
                self.refused.setdefault(site.tensor, why)
                anywhere = replace(site, spec=replace(self.target.activation, bits=site.spec.bits))
                whole = site.role == "activation" and not found.scale.ndim
                self.amiss |= whole and _refusal(anywhere, found, self.target, plan) is not None
                own.add(site.name)
            elif found is not None:
                numbers[site.name] = _held(found, site.spec)
        shared = share_grids(self.source.model, plan, numbers)
        _follow_moves(self.source.model, plan, numbers, self.in_float, own)
        for site in plan.sites:
            lacks = site.name not in numbers and site.name not in own
            if lacks and site.role == "activation" and site.fixed is not None:
                numbers[site.name] = from_range(*site.fixed, site.spec)
            elif lacks and (before := self._before(site)) is not None:
                numbers[site.name] = _held(self._given["activation", before], site.spec)
        for site in plan.sites:
            data = numbers.get(site.factors[0]) if site.factors is not None else None
            if data is not None and not self.target.rounds_bias(data.spec.bits):
                del numbers[site.name]
        hold_exact_constants(self.source.model, plan, numbers)
        if self.exact_as_uint8:
            self.unsigned = unsigned_weights(self.source.model, plan, numbers)
            for name in self.unsigned:
                wanted = replace(numbers[name].spec, signed=False, narrow_range=False)
                numbers[name] = _held(numbers[name], wanted)
        return numbers, shared

    def _before(self, site: Site) -> str | None:
        """The tensor whose numbers an activation without grid is made of, where what passes them on reads it as it was
        given, and the target has quantizers like it: on the same grid they are the same.
        """
        if site.role != "activation" or ("activation", site.tensor) in self._given:
            return None
        node = self._makers.get(site.tensor)
        while node is not None and node.op_type in _PASSED_ON and node.domain == "" and node.inputs[0] is not None:
            name = node.inputs[0].name or ""
            found = self._given.get(("activation", name))
            if found is not None:
                fits = not found.scale.ndim and _refusal(site, found, self.target, None) is None
                given = self.quantizes(name) or (name not in self.refused and Edge(node.name or "", 0) in self._reading)
                return name if fits and given else None
            node = self._makers.get(name)
        return None

    def _of(self, site: Site) -> QParams | None:
        """The numbers that a tensor was given; a weight's in more bits where its kernels have none so narrow."""
        found = self._given.get((kind_of(site.role), site.tensor))
        if found is None or site.role != "weight" or found.spec.scheme is not Scheme.UNIFORM:
            return found
        widths = set(self.target.weight_bits)
        for edge in site.readers:
            rule = row(self.target, self._nodes[edge.node]) if edge.node in self._nodes else None
            widths &= rule.weight_bits if rule is not None else widths
        wider = [bits for bits in widths if bits > found.spec.bits]
        return found if found.spec.bits in widths or not wider else _widened(found, min(wider))


def _follow_moves(
    model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams], in_float: Set[str], refused: Set[str]
) -> None:
    """Numbers for tied sites without, in place: those of the tensor they come from, else of the ones they become.

    A quantizer moves to the front of what moves its tensor only if all that reads the tensor has these numbers: another
    branch would be rounded that is not in the model given. To the front of an average it does not move at all.
    """
    values = {v.name: v for n in all_nodes(model) for v in n.outputs} | {v.name: v for v in model.graph.inputs}
    tied = _Tied(plan, numbers)
    lacking = [
        (site, value)
        for site in plan.sites
        if site.role == "activation" and site.name not in numbers and site.name not in refused
        if (value := values.get(site.tensor)) is not None
    ]
    for site, value in lacking:
        if (found := tied.before(site, value)) is not None:
            numbers[site.name] = found
    for site, value in reversed(lacking):
        if site.name not in numbers and (found := tied.behind(site, value, in_float)) is not None:
            numbers[site.name] = found


class _Tied:
    """Numbers that sites get from those that they are tied to, as far as these have any by then."""

    def __init__(self, plan: Plan, numbers: Mapping[str, QParams]) -> None:
        self._plan, self._numbers = plan, numbers
        self._sites = {s.tensor: s for s in reversed(plan.sites) if s.role in ("activation", "constant")}

    def before(self, site: Site, value: ir.Value) -> QParams | None:
        """Those of the first tensor that the tensor of a site is made of."""
        maker = value.producer()
        known = (self._of(read, site) for read in (maker.inputs if maker is not None else ()))
        return next((found for found in known if found is not None), None)

    def behind(self, site: Site, value: ir.Value, in_float: Container[str]) -> QParams | None:
        """Those of all that the tensor of a site becomes; None where they differ, or some is read in float."""
        if value.is_graph_output() or any(averages(node) for node, _ in value.uses()):
            return None
        moved = [v for node, _ in value.uses() for v in node.outputs if v.uses() or v.is_graph_output()]
        if any(v.is_graph_output() or (v.name or "") in in_float for v in moved):
            return None
        found = [qp for v in moved if (qp := self._of(v, site)) is not None]
        alike = bool(found) and len(found) == len(moved) and all(same_grid(qp, found[0]) for qp in found)
        return found[0] if alike else None

    def _of(self, value: ir.Value | None, site: Site) -> QParams | None:
        """The numbers of a tensor that a site is tied to; not those of an axis, which is another one behind."""
        other = self._sites.get(value.name or "") if value is not None else None
        if other is None or self._plan.root(other) is not self._plan.root(site):
            return None
        found = self._numbers.get(other.name)
        return found if found is not None and not found.scale.ndim else None


def _refusal(site: Site, qp: QParams, target: Backend, plan: Plan | None) -> str | None:
    """Why no quantizer that a target has at a site is like one, else ``None``; a weight's needs the plan."""
    return (
        _why_no_grid(site, qp, target) or _why_no_axis(site, qp, target, plan) or _why_no_zero_point(site, qp, target)
    )


def _why_no_grid(site: Site, qp: QParams, target: Backend) -> str | None:
    spec, wanted = qp.spec, site.spec
    widths = target.weight_bits if site.role == "weight" else target.act_bits
    if spec.scheme is not wanted.scheme:
        return f"its grid is {spec.scheme.value}"
    if spec.bits != wanted.bits and spec.bits not in widths:
        return f"it has {spec.bits} bits"
    if wanted.power_of_two and not np.array_equal(np.frexp(qp.scale)[0], np.full(qp.scale.shape, 0.5)):
        return "its scale is not a power of two"
    return None


def _why_no_zero_point(site: Site, qp: QParams, target: Backend) -> str | None:
    """Which of its zero points is none of its integers, or not that of a symmetric grid, where the target takes no
    other.
    """
    lowest = -(1 << (qp.spec.bits - 1)) if qp.spec.signed else 0
    outside = qp.zero_point[(qp.zero_point < lowest) | (qp.zero_point >= lowest + (1 << qp.spec.bits))].reshape(-1)
    if outside.size and not (site.role == "weight" and target.weight_zero_points == "beyond"):
        return f"its zero point {int(outside[0])} is none of its integers"
    whole = isinstance(qp.spec.granularity, PerTensor)
    if site.role == "weight":
        free = target.weight_zero_points == "channel" or bool(whole and target.weight_zero_points)
    else:
        free = target.activation_zero_points
    middle = 0 if qp.spec.signed else 1 << (qp.spec.bits - 1)
    off = qp.zero_point[qp.zero_point != middle].reshape(-1)
    taken = free or not site.spec.symmetric or not off.size
    if taken:
        return None
    kind = f"{'' if qp.spec.signed else 'u'}int{qp.spec.bits}"
    return f"{_ASYMMETRIC}: its zero point is {int(off[0])}; a symmetric {kind} has {middle}"


def _why_no_axis(site: Site, qp: QParams, target: Backend, plan: Plan | None) -> str | None:
    """Why its scales of channels are not the target's; those of a weight that is only stored may have any axis."""
    given, own = qp.spec.granularity, site.spec.granularity
    channels = {"weight": target.has_channels, "activation": target.channel_activations}.get(site.role, True)
    if not channels and not isinstance(given, PerTensor):
        return "it has a scale for each channel"
    multiplied = plan is not None and site.role == "weight" and any(e.node not in plan.stored for e in site.readers)
    if multiplied and isinstance(given, PerChannel) and isinstance(own, PerChannel) and given.axis != own.axis:
        return f"its scales are those of axis {given.axis}, where the output channels lie along axis {own.axis}"
    return None


def _widened(qp: QParams, bits: int) -> QParams:
    """The same numbers on a grid of more bits, which holds them all."""
    spec = qp.spec
    further = 0 if spec.signed else (1 << (bits - 1)) - (1 << (spec.bits - 1))
    return QParams(replace(spec, bits=bits, narrow_range=spec.signed), qp.scale, qp.zero_point + further)


def _held(qp: QParams, wanted: QuantSpec) -> QParams:
    """The same grid with the signedness that a target wants."""
    spec, zero = qp.spec, qp.zero_point
    if spec.signed != wanted.signed:
        half = 1 << (spec.bits - 1)
        zero = zero + half if spec.signed else zero - half
    middle = 0 if wanted.signed else 1 << (spec.bits - 1)
    symmetric = bool((zero == middle).all()) and wanted.symmetric
    spec = replace(
        spec, signed=wanted.signed, symmetric=symmetric, power_of_two=wanted.power_of_two, range=wanted.range
    )
    if not wanted.narrow_range:
        spec = replace(spec, narrow_range=False)
    return QParams(spec, qp.scale, zero)
