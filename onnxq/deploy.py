"""A model that carries quantizers, from training or another tool, for a target: its scales are kept.

A scale is moved only where the target cannot compute with it: by the target's ``adjust``, and where a tensor that the
model given has none for gets that of several which differ (:mod:`onnxq.deploying.shared`). Kept, it would give an
artifact that fails or computes something else. Every tensor whose scale was moved is named in the notes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import replace
from importlib import metadata

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.console.terminal import listed, plural
from onnxq.deploying.exact import hold_exact_constants
from onnxq.deploying.shared import same_grid, share_grids, without_torn_ties
from onnxq.deploying.source import in_form, kind_of, past_quantizers
from onnxq.errors import BackendError
from onnxq.given.carried import left_while_running, nothing_to_deploy
from onnxq.given.fitted import fit_to_target
from onnxq.graph.files.load import load
from onnxq.graph.files.save import file_size
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.locations import artifact_path, require_output, spare
from onnxq.measuring.against_source import SourceAgreement, against_source
from onnxq.measuring.final_check import final_check
from onnxq.notes.aloud import say
from onnxq.notes.hints import hints
from onnxq.numbers import fit_biases
from onnxq.options import Options
from onnxq.plan import Edge, Plan, Site
from onnxq.planning.planner import settled_plan
from onnxq.prepare import Source, backend_named
from onnxq.qparams import QParams, from_range
from onnxq.quantized import Quantized
from onnxq.render.reading.planned import reading, writing
from onnxq.spec import PerTensor, QuantSpec

__all__ = ["deploy"]

_LISTED = 5
_A_CONSTANT = "a constant that it reads"
_FLOAT_WEIGHTS = "the model given has its weights in float"
_ALIKE = 40.0
"""dB between a result and the model given, below which it is told what was left out."""
_FINER = "; the result rounds less often"


def deploy(
    model: Source,
    *,
    backend: str,
    output: str | os.PathLike[str] | None = None,
    options: Options | None = None,
) -> Quantized:
    """Write a model that is quantized already for a target.

    Quantizers are pairs of QuantizeLinear and DequantizeLinear, stored integers behind a DequantizeLinear, and
    ``onnxq::FakeQuantize`` functions. Where the target's table quantizes the same tensor, it gets the same scale; the
    zero point moves with the signedness. A scale that the target cannot compute with is moved, and named in the notes.
    What the target quantizes and the model does not stays float, with its reason; but a constant operand that a grid
    holds as it is, a bound say, is quantized where all else is. The result is run beside the model on
    random inputs, and ``verification.against_source`` tells how far they are from each other.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        backend: name of the target.
        output: where to write the artifact: a file, or a folder. Nothing is written without it.
        options: opset, format, exclusions and inclusions.

    Returns:
        The quantized model; ``notes`` say which quantizers of the source the target has no use for, and which scales
        were moved.

    Raises:
        BackendError: the model carries no quantizers, some that onnxq does not write for the target, or operators
            that find their scales while they run; they are named.
        OnnxqError: anything else that goes wrong; nothing is written then.
    """
    options = replace(Options.of(options), placement="all")
    target = backend_named(backend)
    target.require(options)
    require_output(output)
    path = None if output is None else artifact_path(output, model, target.name)
    if path is not None:
        spare(beside=target.format_named(options.format).sidecars(path), model=model)
    given, source, lost = in_form(model, target, options)
    warnings = [*lost, *left_while_running(source, target.format_named(options.format))]
    if not source.qparams:
        raise nothing_to_deploy(source)
    plan, numbers, notes = _adopt(source, past_quantizers(given), target, options)
    if not plan.quantized:
        raise nothing_to_deploy(source, plan)
    made = Quantized(
        source.model,
        plan,
        numbers,
        target,
        notes=(*source.notes, *notes),
        format=options.format or "",
        version=metadata.version("onnxq"),
        recipe=("the scales of the model given",),
        hints=hints(source.model, plan, target, {}),
    )
    result = made.rendered()
    forget_shapes(result)
    checked = final_check(
        source.model,
        result,
        (),
        float_bytes=file_size(source.model),
        providers=options.providers,
        custom_op_library=options.custom_op_library,
        at_home=target.at_home,
    )
    agreed = against_source(load(model), given, result, options)
    told = (*checked.warnings, *warnings, *agreed.warnings, *_left_out(source, plan, agreed))
    made = replace(made, verification=replace(checked, warnings=told, against_source=agreed))
    say(made.verification)
    return made if path is None else made.written(path)


def _left_out(source: Quantized, plan: Plan, agreed: SourceAgreement) -> list[str]:
    """That quantizers of activations are left out, where the result differs much from the model given."""
    held = {tensor for site in plan.sites for tensor in (site.tensor, *site.spans)}
    out = [repr(s.tensor) for s in source.plan.sites if s.role == "activation" and s.tensor not in held]
    if not out or agreed.worst is None or agreed.worst[1].sqnr >= _ALIKE:
        return []
    are = "is" if len(out) == 1 else "are"
    return [
        f"{plural(len(out), 'quantizer')} of activations in the model given {are} left out "
        f"where {plan.backend} computes in float: {listed(out, _LISTED)}{'' if agreed.warnings else _FINER}"
    ]


def _adopt(
    source: Quantized, unquantized: Set[tuple[str, Edge]], target: Backend, options: Options
) -> tuple[Plan, dict[str, QParams], list[str]]:
    """The target's plan with the source's numbers."""
    given: dict[tuple[str, str], QParams] = {}
    for site in source.plan.sites:
        given.setdefault((kind_of(site.role), site.tensor), source.qparams[site.name])

    in_float = {name for name, _ in unquantized}

    def lacking(plan: Plan) -> dict[str, str]:
        numbers, _ = _numbers(source.model, plan, given, in_float)
        edges = ((site.tensor, edge) for site in plan.sites for edge in site.readers)
        lacks = {edge.node: tensor for tensor, edge in edges if (tensor, edge) in unquantized}
        lacks |= reading(plan, numbers)
        if target.complete_units:
            lacks |= writing(source.model, plan, numbers)
        constants = {node for node, tensor in lacks.items() if tensor in source.model.graph.initializers}
        several = len(constants) > 1  # biases of many layers are one line
        names = {n: _A_CONSTANT if several and n in constants else repr(t) for n, t in lacks.items()}
        return {node: f"the model given does not quantize {name}" for node, name in names.items()}

    plan = settled_plan(source.model, target, options, lacking)
    numbers, shared = _numbers(source.model, plan, given, in_float)
    if bad := _refused(plan, given, target):
        rest = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        raise BackendError(
            f"onnxq writes no quantizers for {target.name} like {len(bad)} of this model: "
            f"{'; '.join(bad[:_LISTED])}{rest}",
            hint=f"Quantize the float model for {target.name}, or train with quantizers as onnxq writes them for it",
        )
    without = sorted(set(writing(source.model, plan, numbers).values()))
    sites = tuple(
        replace(s, spec=numbers[s.name].spec, produced=s.produced and s.tensor not in in_float)
        for s in plan.sites
        if s.name in numbers
    )
    plan = _truly_stored(without_torn_ties(replace(plan, sites=sites), numbers))
    fit_biases(source.model, plan, numbers)
    unused = [name for kind, name in given if kind != "bias" and name not in {s.tensor for s in sites}]
    notes = [f"deploy: {target.name} does not quantize {', '.join(map(repr, unused))}"] if unused else []
    if shared:
        names = listed([repr(tensor) for tensor in shared], _LISTED)
        notes.append(
            f"deploy: tensors without a scale share one with others on {target.name}: that of {names} was moved"
        )
    if without:
        end = "the table has no entry" if target.format_named(options.format).simulated else "written in float"
        notes.append(f"deploy: the model given has no scale for {', '.join(map(repr, without))}: {end}")
    return plan, numbers, [*notes, *fit_to_target(source.model, plan, numbers, target)]


def _truly_stored(plan: Plan) -> Plan:
    """A plan that says of layers whose weights the model given has in float that they stay so."""
    held = {edge.node for site in plan.sites if site.role == "weight" for edge in site.readers}
    kept = (replace(k, reason=_FLOAT_WEIGHTS) if k.node in plan.stored.keys() - held else k for k in plan.kept_float)
    return replace(plan, stored={n: plan.stored[n] for n in plan.stored if n in held}, kept_float=tuple(kept))


def _numbers(
    model: ir.Model, plan: Plan, given: Mapping[tuple[str, str], QParams], in_float: Set[str]
) -> tuple[dict[str, QParams], list[str]]:
    """The source's numbers for the sites of a plan, and the tensors whose grid a tie has changed.

    Sites without are left out. Ties give them to each other.
    """
    numbers: dict[str, QParams] = {}
    for site in plan.sites:
        found = given.get((kind_of(site.role), site.tensor))
        if site.role == "bias":
            numbers[site.name] = QParams(site.spec, np.float32(1.0).reshape(()), np.zeros((), np.int64))
        elif found is not None:
            numbers[site.name] = _held(found, site.spec)
    shared = share_grids(model, plan, numbers)
    _follow_moves(model, plan, numbers, in_float)
    for site in plan.sites:
        if site.name not in numbers and site.role == "activation" and site.fixed is not None:
            numbers[site.name] = from_range(*site.fixed, site.spec)
    hold_exact_constants(model, plan, numbers)
    return numbers, shared


def _follow_moves(model: ir.Model, plan: Plan, numbers: dict[str, QParams], in_float: Set[str]) -> None:
    """Numbers for tied sites without, in place: those of the tensor they come from, else of the ones they become.

    A quantizer moves to the front of what moves its tensor only if all that reads the tensor has these numbers: another
    branch would be rounded that is not in the model given.
    """
    values = {v.name: v for n in all_nodes(model) for v in n.outputs} | {v.name: v for v in model.graph.inputs}
    sites = {s.tensor: s for s in reversed(plan.sites) if s.role in ("activation", "constant")}

    def known(value: ir.Value | None, of: Site) -> QParams | None:
        site = sites.get(value.name or "") if value is not None else None
        found = numbers.get(site.name) if site is not None and plan.root(site) is plan.root(of) else None
        return found if found is not None and not found.scale.ndim else None  # an axis is another one behind

    missing = [s for s in plan.sites if s.role == "activation" and s.name not in numbers]
    for site in missing:
        value = values.get(site.tensor)
        node = value.producer() if value is not None else None
        found = [qp for v in (node.inputs if node is not None else ()) if (qp := known(v, site)) is not None]
        if found:
            numbers[site.name] = found[0]
    for site in reversed(missing):
        value = values.get(site.tensor)
        if site.name in numbers or value is None or value.is_graph_output():
            continue
        moved = [v for node, _ in value.uses() for v in node.outputs if v.uses() or v.is_graph_output()]
        after = [known(v, site) for v in moved]
        alike = bool(after) and all(qp is not None and after[0] is not None and same_grid(qp, after[0]) for qp in after)
        if alike and after[0] is not None and not any(v.is_graph_output() or v.name in in_float for v in moved):
            numbers[site.name] = after[0]


def _refused(plan: Plan, given: Mapping[tuple[str, str], QParams], target: Backend) -> list[str]:
    """Quantizers of the model given that the plan wants and the target's table has not, with the reason."""
    found = {}
    for site in plan.sites:
        qp = given.get((kind_of(site.role), site.tensor))
        why = _refusal(site, qp, target) if qp is not None else None
        if why is not None:
            found[site.tensor] = f"{site.tensor!r}: {why}"
    return list(found.values())


def _refusal(site: Site, qp: QParams, target: Backend) -> str | None:
    """Why no quantizer that a target has at a site is like one, else ``None``."""
    if site.role == "bias":
        return None  # made anew from the scales of data and weight
    spec, wanted = qp.spec, site.spec
    widths = target.weight_bits if site.role == "weight" else target.act_bits
    if spec.scheme is not wanted.scheme:
        return f"its grid is {spec.scheme.value}"
    if spec.bits != wanted.bits and spec.bits not in widths:
        return f"it has {spec.bits} bits"
    if wanted.power_of_two and not np.array_equal(np.frexp(qp.scale)[0], np.full(qp.scale.shape, 0.5)):
        return "its scale is not a power of two"
    middle = 0 if spec.signed else 1 << (spec.bits - 1)
    free = site.role == "weight" and target.weight_zero_points
    if wanted.symmetric and not free and (qp.zero_point != middle).any():
        return f"its zero point is {int(qp.zero_point.reshape(-1)[0])}, where onnxq writes the middle"
    channels = {"weight": target.has_channels, "activation": target.channel_activations}.get(site.role, True)
    if not channels and not isinstance(spec.granularity, PerTensor):
        return "it has a scale for each channel"
    return None


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
