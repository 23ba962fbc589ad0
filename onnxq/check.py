"""Everything that could go wrong, found at once, in seconds and before any work: model, target, options, data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import onnx_ir as ir

from onnxq.algorithm_choice import chosen, whole_model
from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.checks.data import check_data
from onnxq.checks.findings import Finding, of_error
from onnxq.checks.lacks import lacks
from onnxq.checks.weights import check_weights
from onnxq.console.terminal import counts
from onnxq.errors import ExecutionError, ModelError, OnnxqError, OptionError
from onnxq.graph.domains import MICROSOFT, STANDARD, TENSORRT
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.files.onnx_checker import check as check_model
from onnxq.graph.shapes import inputs_of_unknown_size
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.integer_operators import PACKED, QUANTIZERS, WHILE_RUNNING, is_in_integers, quantizing
from onnxq.notes.reasons import by_reason
from onnxq.options import ImageOptions, Options
from onnxq.options.selection import Selection
from onnxq.ort.absent import absent_providers
from onnxq.ort.fp4_in_float import DYNAMIC
from onnxq.ort.messages import LOOK
from onnxq.ort.session import Session
from onnxq.planning.placement import UNKNOWN_DIM
from onnxq.prepare import Prepared
from onnxq.quantize import plan_fitted
from onnxq.rewritten import require_home

__all__ = ["Finding", "check"]

_KNOWN_DOMAINS = (*STANDARD, MICROSOFT, "com.microsoft.nchwc", "onnxq")
_ORDER = {"error": 0, "warning": 1, "note": 2}


def check(
    model: ModelSource,
    data: Any = None,
    *,
    backend: str = "onnxruntime",
    options: Options | None = None,
    image: ImageOptions | None = None,
) -> list[Finding]:
    """Look for everything that could go wrong; nothing is calibrated or written.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: calibration data, see `onnxq.calibration.data.open_data`; looked at if given.
        backend: name of the target.
        options: as for quantizing.
        image: how pictures are read.

    Returns:
        The findings, errors first, then warnings, then notes (which also say what will be quantized).
    """
    options = Options.of(options)
    try:
        loaded = load(model)
    except OnnxqError as error:
        return [of_error(error, "model")]
    prepared = _prepared(loaded, options)
    mended = isinstance(prepared, Prepared)
    findings = _validity(loaded, options, mended=mended) + _operators(loaded, options) + check_weights(loaded)
    if isinstance(prepared, Prepared):
        findings += [*prepared.random, *(Finding("note", "model", said) for said in prepared.lost)]
    # what will be calibrated, an old opset raised
    session, said = _opened(prepared.model if isinstance(prepared, Prepared) else loaded, options)
    if said is not None and data is None and _is_for_elsewhere(options):
        said = replace(said, level="warning", hint="The result will not be loaded: run it where the provider is.")
    if said is not None and not any(f.level == "error" and f.where.startswith("node") for f in findings):
        findings.append(said)
    shapes: dict[str, tuple[int, ...]] = {}
    if session is not None:
        findings += _inputs(session, data is not None)
        if data is not None:
            seen, shapes = check_data(loaded, session, data, options, image)
            findings += seen
    alone = _alone(prepared, backend, options)
    findings += alone if alone else _for_target(prepared, backend, options, shapes)
    unique = list({(f.where, f.what): f for f in findings}.values())
    return sorted(unique, key=lambda f: _ORDER[f.level])


def _opened(model: ir.Model, options: Options) -> tuple[Session | None, Finding | None]:
    """A session of the model, and what to say where onnxruntime cannot load it, or with its optimizations not."""
    opened = partial(Session, model, **options.session)
    try:
        return opened(), None
    except OptionError as error:
        return None, of_error(error, "onnxruntime")
    except ExecutionError as error:
        try:
            plain = opened(optimize=False)
        except ExecutionError:
            found = of_error(error, "onnxruntime")
            return None, replace(found, hint="" if found.hint == LOOK else found.hint)
        what = of_error(error, "onnxruntime").what
        return plain, Finding("warning", "onnxruntime", f"it runs without graph optimizations only; with them: {what}")


def _is_for_elsewhere(options: Options) -> bool:
    """Whether weights alone are stored, for an execution provider that is not here."""
    try:
        whole = whole_model(options.algorithms)
    except OptionError:  # is told with other settings that there are not
        return False
    return whole is not None and whole.name == "weight_only" and bool(absent_providers(options.providers))


def _prepared(model: ir.Model, options: Options) -> Prepared | OnnxqError:
    """The model as it will be calibrated, or why it cannot be."""
    try:
        return Prepared(model, options)
    except OnnxqError as error:
        return error


def _validity(model: ir.Model, options: Options, *, mended: bool) -> list[Finding]:
    """What the ONNX checker says of the model as it came, an error unless preparing it ``mended`` that.

    A model that onnxruntime loads all the same is not called invalid.
    """
    try:
        check_model(model)
    except ModelError as error:
        found = of_error(error, "model")
        if not mended:
            return [found]
        if _opened(model, options)[0] is None:
            return [replace(found, level="warning", hint="onnxq mends it; other tools may not.")]
        where = "model" if found.where == "invalid model" else found.where
        hint = "onnxruntime loads it all the same, and onnxq mends it; other tools may not."
        return [replace(found, level="note", where=where, hint=hint)]
    return []


def _operators(model: ir.Model, options: Options) -> list[Finding]:
    """Custom operators, and what is quantized already."""
    found = []
    if options.custom_op_library is not None and not os.path.isfile(options.custom_op_library):
        found.append(Finding("error", "custom_op_library", f"{options.custom_op_library!r} does not exist"))
    local = {(domain, name) for domain, name, _ in model.functions}
    for node in model.graph.all_nodes():
        if node.domain in _KNOWN_DOMAINS or (node.domain, node.op_type) in local | {(TENSORRT, DYNAMIC)}:
            continue
        where = f"node {node.name or node.op_type!r} ({node.domain}::{node.op_type})"
        if options.custom_op_library is None:
            hint = "Name its library with --custom-op-library."
            found.append(Finding("error", where, "is a custom operator that onnxruntime does not know", hint))
    if quantized := quantizing(model):
        what = f"the model is quantized in part already: {counts(quantized)}"
        found.append(Finding("warning", "model", what, _of_quantized(model)))
    return found


def _of_quantized(model: ir.Model) -> str:
    """What to do with a model that is quantized: deploy takes scales of activations, where these are constants."""
    best = "Give the float model for the best result"
    nodes = [node for node in all_nodes(model) if node.op_type in QUANTIZERS or is_in_integers(node.op_type)]
    if all(node.op_type in PACKED or _of_a_constant(node) for node in nodes):
        return f"{best}: of this one only weights are quantized, so that 'onnxq deploy' does not take it."
    if any(node.op_type in WHILE_RUNNING for node in nodes):
        return f"{best}."
    return f"{best}; 'onnxq deploy' writes this one for a target as it is."


def _of_a_constant(node: ir.Node) -> bool:
    """Whether a node is a quantizer of a constant, or of what such a one gives."""
    data = node.inputs[0] if node.op_type in QUANTIZERS else None
    before = data.producer() if data is not None else None
    return data is not None and (is_constant(data) or (before is not None and _of_a_constant(before)))


def _inputs(session: Session, has_data: bool) -> list[Finding]:
    """Free dimensions that the data decides."""
    free = []
    for info in session.inputs:
        if info.shape is None:
            free.append(f"{info.name!r} (any rank)")
        elif any(not isinstance(dim, int) for dim in info.shape[1:]):
            free.append(repr(info.name))
    if not free or has_data:
        return []
    what = f"inputs with free dimensions: {', '.join(free)}"
    return [
        Finding("note", "model", what, "The data decides their sizes; use those of real use, or fix them (--shape).")
    ]


def _alone(prepared: Prepared | OnnxqError, backend: str, options: Options) -> list[Finding]:
    """What an algorithm that is a pipeline of its own, if one is asked for, makes of the target and the options."""
    try:
        whole = whole_model(options.algorithms)
    except OptionError:  # is told with other settings that there are not
        return []
    if whole is None:
        return []
    try:
        home = backend_named(require_home(backend, whole))
        if (require := getattr(whole.algorithm, "require", None)) is not None:
            require(options)
    except OptionError as error:
        return [of_error(error, "algorithm")]
    what = "is a pipeline of its own: what it quantizes is known only from its result"
    found = [Finding("note", f"algorithm {whole.name!r}", what)]
    if isinstance(prepared, Prepared) and not home.at_home:
        found += lacks(prepared.for_target(home, Options()).model, home, Options())
    return found


def _for_target(
    prepared: Prepared | OnnxqError, backend: str, options: Options, shapes: Mapping[str, Sequence[int]]
) -> list[Finding]:
    """What the target makes of the model: settings that it has not, what will be quantized, what it cannot run."""
    where = f"backend {backend!r}"
    try:
        target = backend_named(backend)
    except OnnxqError as error:
        return [of_error(error, where)]
    found = _settings(prepared, target, options)
    try:
        if isinstance(prepared, OnnxqError):
            raise prepared
        fitted = prepared.for_target(target, options).model
        found += [] if found else _plan(fitted, target, options, shapes)
        return found + lacks(fitted, target, options)
    except OnnxqError as error:
        return [*found, of_error(error, where)]


def _settings(prepared: Prepared | OnnxqError, target: Backend, options: Options) -> list[Finding]:
    """Settings that the target or the model has not, each by itself first: all that are wrong are told at once."""
    default = Options()
    given = {f.name: getattr(options, f.name) for f in fields(Options)}
    single = [replace(default, **{n: value}) for n, value in given.items() if value != getattr(default, n)]
    found = [_refused(prepared, target, asked) for asked in (*single, options)]
    return [finding for finding in found if finding is not None]


def _refused(prepared: Prepared | OnnxqError, target: Backend, options: Options) -> Finding | None:
    """What some settings are refused for; None where they are not."""
    try:
        chosen(options.algorithms)
        target.require(options)
        if isinstance(prepared, Prepared) and (options.exclude or options.include or options.override):
            model = prepared.for_target(target, options).model
            Selection(model, list(all_nodes(model)), options)
    except OnnxqError as error:
        return of_error(error, f"backend {target.name!r}")
    return None


def _plan(fitted: ir.Model, target: Backend, options: Options, shapes: Mapping[str, Sequence[int]]) -> list[Finding]:
    """What will be quantized, and what stays float, of samples of some shapes."""
    try:
        made = plan_fitted(fitted, target, options, shapes)
    except OnnxqError as error:
        return [of_error(error, f"backend {target.name!r}")]
    nodes, total = made.done, made.total
    guessed = target.by_cost and bool(inputs_of_unknown_size(fitted, shapes))
    hint = f"With free dimensions taken as {UNKNOWN_DIM}: --data shows those of real use." if guessed else ""
    where = f"backend {made.backend!r}"
    if not made.quantized:
        stored = f"; the weights of {counts(made.stored.values())} will be stored as integers" if made.stored else ""
        what = f"none of {total} float nodes will be quantized{stored}"
        found = [Finding("note" if guessed else "warning", where, what, hint)]
    else:
        found = [Finding("note", where, f"{nodes} of {total} float nodes will be quantized", hint)]
    return found + [
        Finding("note", "stays float", f"{counts(k.op for k in kept)}: {reason}")
        for reason, kept in by_reason(made.kept_float)
    ]
