"""A model that carries quantizers, from training or another tool, for a target: its scales are kept.

A scale is changed only where the target cannot compute with it: by the target's ``adjust``, and where a tensor that the
model given has none for gets that of several which differ (:mod:`onnxq.deploying.shared`). Kept, it would give an
artifact that fails or computes something else. Every tensor whose scale was changed is named in the notes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onnxq.asked_scheme import for_given_numbers
from onnxq.backend import Backend, Kind
from onnxq.backend_choice import backend_named
from onnxq.catalog import backends
from onnxq.console.terminal import plural
from onnxq.deploying.bounds import Bounds, keep_bounds
from onnxq.deploying.float_readers import with_float_readers
from onnxq.deploying.given_numbers import GivenNumbers
from onnxq.deploying.lacking import lacking
from onnxq.deploying.shared import without_torn_ties
from onnxq.deploying.source import in_form, past_quantizers
from onnxq.deploying.unlike import unlike
from onnxq.deploying.unsigned_weights import without_sign
from onnxq.errors import BackendError
from onnxq.for_processor import reduces
from onnxq.given.artifact import refuse_table
from onnxq.given.fitted import fit_to_target
from onnxq.given.not_taken import left_while_running, nothing_to_deploy, refuse_unread
from onnxq.graph.files.as_it_came import given_size
from onnxq.graph.files.load import load
from onnxq.graph.files.save import file_size
from onnxq.graph.shapes import forget_shapes
from onnxq.locations import artifact_path, require_output, spare
from onnxq.measuring.against_source import against_source
from onnxq.measuring.final_check import first_look
from onnxq.notes.aloud import say
from onnxq.notes.hints import hints
from onnxq.numbers import fit_biases
from onnxq.options import Options
from onnxq.plan import Edge, Plan
from onnxq.planning.planner import settled_plan
from onnxq.prepare import Source
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.reading.planned import writing

__all__ = ["deploy"]

_LISTED = 5
_FLOAT_WEIGHTS = "the model given has its weights in float"
_TABLE = (
    "deploy reads no tables, but quantizers in the model: onnxq writes them with --format fake-quantize, where the "
    "table's target has that, aimet-onnx with to_onnx_qdq"
)


def deploy(
    model: Source,
    *,
    backend: str = "onnxruntime",
    output: str | os.PathLike[str] | None = None,
    options: Options | None = None,
) -> Quantized:
    """Write a model that is quantized already for a target.

    Quantizers are pairs of QuantizeLinear and DequantizeLinear, stored integers behind a DequantizeLinear, and
    ``onnxq::FakeQuantize`` functions. Where the target's table quantizes the same tensor, it gets the same scale; the
    zero point moves with the signedness. A scale that the target cannot compute with is changed, and noted.
    What the target quantizes and the model does not stays float, with its reason; but a constant operand that a grid
    holds as it is, a bound say, is quantized where all else is. Of what the model quantizes and the target does not,
    the bounds stay, as a Clip, where they cut off more than rounding did. The result is run beside the model on
    random inputs, and ``verification.against_source`` tells how far they are from each other.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        backend: name of the target.
        output: where to write the artifact: a file, or a folder. Nothing is written without it.
        options: opset, format, exclusions and inclusions, and whether it is to run on x86 without VNNI.

    Returns:
        The quantized model; ``notes`` say which quantizers of the source the target has no use for, and which scales
        were changed.

    Raises:
        BackendError: the model carries no quantizers, some that onnxq does not write for the target, or operators
            that find their scales while they run; they are named.
        OnnxqError: anything else that goes wrong; nothing is written then.
    """
    options, target = Options.of(options), backend_named(backend)
    target.require(options)
    exact_as_uint8 = target.overflows is not None and reduces(target, options)
    options = for_given_numbers(target, options)
    form = target.format_named(options.format)
    require_output(output, beside=form.beside)
    path = None if output is None else artifact_path(output, model, target.name, beside=form.beside)
    if path is not None:
        spare(beside=form.sidecars(path), model=model)
    given, source, lost = in_form(model, target, options)
    refuse_unread(source)
    warnings = [*lost, *left_while_running(source, form)]
    if not source.qparams and isinstance(model, (str, os.PathLike)):
        refuse_table(Path(model), source.model, _TABLE)
    needed = "weight" if target.weights_alone else "activation"
    if not any(site.role == needed for site in source.plan.sites):
        raise nothing_to_deploy(source)
    unquantized = past_quantizers(given)
    numbers = GivenNumbers(source, target, {name for name, _ in unquantized}, exact_as_uint8)
    adopted = _adopt(numbers, unquantized, options)
    if not adopted.plan.quantized:
        raise nothing_to_deploy(source, adopted.plan)
    plan, bounds = keep_bounds(source, adopted.plan, adopted.numbers, options)
    clips = ", ".join(map(repr, bounds.kept))
    kept = [f"deploy: a Clip keeps the bounds of quantizers that are left out: {clips}"] if clips else []
    made = Quantized(
        source.model,
        plan,
        adopted.numbers,
        target,
        notes=(*source.notes, *adopted.notes, *kept),
        format=options.format or "",
        recipe=("the scales of the model given", *_but_for(adopted.moved, target)),
        hints=hints(source.model, plan, target, {}),
    )
    made = replace(made, notes=(*made.notes, *form.told(made)))
    warnings += [*adopted.warnings, *form.warned(made)]
    made = _verified(made, model, given, options, bounds, adopted.moved, warnings)
    say(made.verification)
    return made if path is None else made.written(path)


def _verified(
    made: Quantized,
    model: Source,
    given: Quantized,
    options: Options,
    bounds: Bounds,
    moved: Collection[str],
    warnings: Sequence[str],
) -> Quantized:
    """A result that was run, alone and beside the model that was given.

    Args:
        made: the result.
        model: what was given.
        given: the same as it was read.
        options: as they were asked for.
        bounds: of the quantizers that the target has no use for.
        moved: tensors whose scales are not those given.
        warnings: what else there is to warn of.
    """
    result, target = made.rendered(), made.backend
    forget_shapes(result)
    checked = first_look(
        made.model,
        result,
        (),
        float_bytes=file_size(made.model),
        at_home=target.at_home,
        **options.session,
    ).completed()
    source = load(model, again=True)
    size = given_size(model, source)
    agreed = replace(against_source(source, given, result, options), given_bytes=size)
    told = (
        *checked.warnings,
        *warnings,
        *agreed.warnings,
        *agreed.overflows,
        *unlike(agreed, bounds, moved, target.name),
    )
    return replace(
        made, verification=replace(checked, warnings=told, plain_sqnr=agreed.plain_sqnr, against_source=agreed)
    )


@dataclass(frozen=True)
class _Adopted:
    """What a target makes of the numbers of a model given.

    Attributes:
        plan: the target's.
        numbers: by site name.
        moved: tensors whose scales are not those given, and how many of each.
        notes: which have no use there, and which were changed.
        warnings: which the target has not.
    """

    plan: Plan
    numbers: dict[str, QParams]
    moved: Mapping[str, int]
    notes: Sequence[str]
    warnings: Sequence[str]


def _adopt(given: GivenNumbers, unquantized: Set[tuple[str, Edge | None]], options: Options) -> _Adopted:
    """The target's plan with the source's numbers."""
    source, target = given.source, given.target
    stored = {edge.node for edge in source.plan.by_edge("weight")}
    plan = settled_plan(source.model, target, options, partial(lacking, given, unquantized), store=stored)
    numbers, shared = given.of(plan)
    warnings = _refused(plan, given, target)
    simulated = target.format_named(options.format).simulated
    without = _without_scale(
        sorted(set(writing(source.model, plan, numbers).values()) - given.refused.keys()), simulated
    )
    plan = with_float_readers(source, _with_numbers(plan, numbers, given.in_float), numbers)
    fit_biases(source.model, plan, numbers)
    notes = [*_changed(given, plan, numbers, shared), *without, *fit_to_target(source.model, plan, numbers, target)]
    return _Adopted(plan, numbers, given.moved(plan, numbers), notes, warnings)


def _with_numbers(plan: Plan, numbers: Mapping[str, QParams], in_float: Set[str]) -> Plan:
    """A plan of the sites that have numbers, those of a tensor left float aside that quantize nothing."""
    sites = tuple(
        replace(s, spec=numbers[s.name].spec, produced=s.produced and s.tensor not in in_float)
        for s in plan.sites
        if s.name in numbers and (s.readers or s.tensor not in in_float)
    )
    return _truly_stored(without_torn_ties(replace(plan, sites=sites), numbers))


def _changed(given: GivenNumbers, plan: Plan, numbers: Mapping[str, QParams], shared: Sequence[str]) -> Iterator[str]:
    """Notes of the numbers given that the target has no use for, and of those that were changed."""
    name = given.target.name
    if unused := given.unused(plan):
        yield f"deploy: {name} does not quantize {', '.join(map(repr, unused))}"
    if shared:
        moved = ", ".join(map(repr, shared))
        yield f"deploy: tensors without a scale share one with others on {name}: that of {moved} was changed"
    yield from without_sign(given.unsigned)
    if raised := given.moved(plan, numbers).keys() - set(shared):
        names = ", ".join(repr(s.tensor) for s in plan.sites if s.tensor in raised)
        yield f"deploy: scales raised, since a bias would not fit 32 bits with those given: {names}"


def _without_scale(tensors: Sequence[str], simulated: bool) -> list[str]:
    """A note of tensors that a quantizer of the target would write, and that the model given has no numbers for."""
    end = "the table has no entry" if simulated else "written in float"
    return [f"deploy: the model given has no scale for {', '.join(map(repr, tensors))}: {end}"] if tensors else []


def _but_for(moved: Mapping[str, int], target: Backend) -> list[str]:
    """What the summary says of scales that are not those of the model given."""
    if not moved:
        return []
    count = f"{plural(sum(moved.values()), 'scale')} of {plural(len(moved), 'tensor')}"
    return [f"{count} changed: {target.name} cannot compute with those given (-v names the tensors)"]


def _refused(plan: Plan, given: GivenNumbers, target: Backend) -> list[str]:
    """A warning of quantizers of the model given that the target has not: layers that read them stay float.

    Raises:
        BackendError: no layer that multiplies is left in integers, or a whole activation has such a quantizer.
    """
    refused = given.refused
    if not refused:
        return []
    reasons = [f"{tensor!r}: {why}" for tensor, why in refused.items()]
    more = f"; and {len(reasons) - _LISTED} more" if len(reasons) > _LISTED else ""
    told = "; ".join(reasons[:_LISTED]) + more
    hint = f"Quantize the float model for {target.name} with 'onnxq quantize', or {given.way_out}"
    hint += _targets_of(given)
    multiplies = {rule.op.split(":")[0] for rule in target.rules.values() if rule.kind in (Kind.COMPUTE, Kind.PRODUCT)}
    if given.amiss or not multiplies & set(plan.quantized.values()):
        what = f"{_of_no_kind(len(refused), target)}: {told}"
        raise BackendError(what, hint=hint)
    them = "it" if len(refused) == 1 else "them"
    return [f"{_of_no_kind(len(refused), target)}; what reads {them} stays float: {told}"]


def _of_no_kind(refused: int, target: Backend) -> str:
    """How many quantizers are refused, in words."""
    are = "is" if refused == 1 else "are"
    return f"{plural(refused, 'quantizer')} of this model {are} of a kind that onnxq does not write for {target.name}"


def _targets_of(given: GivenNumbers) -> str:
    """Which targets have grids of the kind that this one has not; nothing where it has that."""
    sites = (site for site in given.source.plan.sites if site.tensor in given.refused)
    kinds = {given.source.qparams[site.name].spec.scheme for site in sites} - {given.target.activation.scheme}
    names = [f"--backend {target.name}" for target in backends() if {target.activation.scheme} == kinds]
    return f". Grids like these are those of {' or '.join(names)}" if names else ""


def _truly_stored(plan: Plan) -> Plan:
    """A plan that says of layers whose weights the model given has in float that they stay so."""
    held = {edge.node for edge in plan.by_edge("weight")}
    kept = (replace(k, reason=_FLOAT_WEIGHTS) if k.node in plan.stored.keys() - held else k for k in plan.kept_float)
    return replace(plan, stored={n: plan.stored[n] for n in plan.stored if n in held}, kept_float=tuple(kept))
