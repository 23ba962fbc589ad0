"""What was made of a model that was quantized already, against that model: does it run, are the numbers the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checks.randomness import is_random
from onnxq.console.terminal import decibels, plural
from onnxq.errors import ExecutionError, ModelError, OnnxqError
from onnxq.measuring.final_check import failed
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.outputs import errors_of, no_tensors, worst_sqnr
from onnxq.measuring.overflow import overflows
from onnxq.measuring.random_inputs import on_random_inputs
from onnxq.measuring.verification import SourceAgreement
from onnxq.notes.commands import compare_command
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.quantized import Quantized

__all__ = ["against_source"]

_AGREED = 30.0
"""dB from which on nothing is said: codes at ties, and other orders of summing."""
_MARGIN = 3.0
"""dB by which a result may be farther from the model given than that is from its own float model."""

_APART = "not compared with the model given"
_UNRUN = "Nor was it run: see whether it does before using the result"

Feeds = Mapping[str, NDArray[Any]]


def against_source(source: ir.Model, inside: Quantized, result: ir.Model, options: Options) -> SourceAgreement:
    """Run a result and the model it was made of on random inputs.

    The numbers lie in the ranges that the quantizers of the model given hold; see
    :func:`onnxq.measuring.random_inputs.random_inputs`. Both are run as they are written; at home the result is run
    with graph optimizations as well. Where they differ more than the model given differs from its own float model, or
    the result is farther from that than the model given is, less or more rounding does not explain it: that is a
    warning.

    Args:
        source: the quantized model given.
        inside: what was read from it: its float model, and its numbers.
        result: what its artifact computes.
        options: custom operators and providers.

    Raises:
        VerificationError: the result does not run where the model given does, or not with graph optimizations.
    """
    skipped = "it gives something else each time it runs" if is_random(inside.model) else ""
    samples: list[tuple[Feeds, Feeds]] = []
    found = SourceAgreement()
    try:
        samples = on_random_inputs(inside, _session(source, options).run)
    except OnnxqError as error:
        skipped = skipped or _reason(error)
    try:
        plain = _session(result, options)
        ran = [(feeds, plain.run(feeds)) for feeds, _ in samples] or on_random_inputs(inside, plain.run)
    except OnnxqError as error:
        if samples and isinstance(error, (ExecutionError, ModelError)):
            raise failed(error, inside.model) from error
        return replace(found, skipped=skipped, warnings=(f"{_APART}: {skipped}. {_UNRUN}",))
    plain_sqnr = _optimized(result, inside, ran, options) if inside.backend.at_home else None
    lost = overflows(result, plain_sqnr, ran, open_session=partial(Session, **options.session))
    found = replace(found, ran=len(ran), plain_sqnr=plain_sqnr, skipped=skipped, overflows=tuple(lost))
    if skipped:
        return replace(found, warnings=(f"{_APART}: {skipped}",))
    errors = errors_of(plain.run, samples) | _counted(plain, samples)
    told = no_tensors((str(value.name) for value in source.graph.outputs), errors, "the model given")
    if not errors:
        return replace(found, skipped="it gives no tensors", warnings=tuple(told))
    warnings = (*told, *_judged(errors, samples, plain, inside, options))
    return replace(found, samples=len(samples), outputs=errors, warnings=warnings)


def _reason(error: OnnxqError) -> str:
    return f"{error.where}: {error.what}" if error.where else error.what


def _optimized(
    result: ir.Model, inside: Quantized, ran: Sequence[tuple[Feeds, Feeds]], options: Options
) -> float | None:
    """How far the result with all graph optimizations is from what it gave with none, in dB.

    Raises:
        VerificationError: it does not run with them.
    """
    try:
        session = Session(result, **options.session)
        found = worst_sqnr(session.run, ran)
    except (ExecutionError, ModelError) as error:
        raise failed(error, inside.model) from error
    return found if found == found else None


def _session(model: ir.Model, options: Options) -> Session:
    return Session(model, optimize=False, prepack=False, **options.session)


def _counted(session: Session, samples: Sequence[tuple[Feeds, Feeds]]) -> dict[str, Errors]:
    """The errors of outputs that are no floats."""
    meters: dict[str, ErrorMeter] = {}
    if all(values.dtype.kind == "f" for _, wanted in samples for values in wanted.values()):
        return {}
    for feeds, wanted in samples:
        got = session.run(feeds)
        for name, values in wanted.items():
            if values.dtype.kind != "f":
                meters.setdefault(name, ErrorMeter()).update(values, got[name])
    return {name: meter.result() for name, meter in meters.items()}


def _judged(
    errors: Mapping[str, Errors],
    samples: Sequence[tuple[Feeds, Feeds]],
    result: Session,
    inside: Quantized,
    options: Options,
) -> list[str]:
    """A warning where an output is farther from the model given, or from its float model, than rounding explains."""
    if not any(found.score < _AGREED for found in errors.values()):
        return []
    floats = _session(inside.model, options)
    rounding = errors_of(floats.run, samples)  # the float model against the quantized one: the same noise
    exact = [(feeds, floats.run(feeds)) for feeds, _ in samples]
    given = iter([wanted for _, wanted in samples])
    before, after = errors_of(lambda feeds: next(given), exact), errors_of(result.run, exact)
    inputs = plural(len(samples), "random input")
    command = compare_command(inside.backend, options.format)
    advice = f"Compare both on real data ('{command} SOURCE RESULT --data DATA') before using the result"
    for name, found in sorted(errors.items(), key=lambda pair: pair[1].score):
        if name not in rounding or found.score >= _AGREED:
            continue
        if found.score < rounding[name].score - _MARGIN:
            apart = f" and another shape in {found.reshaped} of them" if found.reshaped else ""
            return [
                f"output {name!r} is {decibels(found.score)} from that of the model given on {inputs}{apart}, which is "
                f"itself {decibels(rounding[name].score)} from its float model: rounding does not explain that. "
                f"{advice}"
            ]
        if after[name].score < before[name].score - _MARGIN:
            return [
                f"output {name!r} is {decibels(after[name].score)} from that of the float model inside the model given "
                f"on {inputs}, the model given {decibels(before[name].score)}: the result loses more. {advice}"
            ]
    return []
