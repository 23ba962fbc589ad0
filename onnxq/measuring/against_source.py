"""What was made of a model that was quantized already, against that model: are the numbers the same?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checks.randomness import is_random
from onnxq.console.terminal import decibels, plural
from onnxq.errors import OnnxqError
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.outputs import errors_of, worst_output
from onnxq.measuring.random_inputs import SIZES, random_inputs
from onnxq.notes.commands import compare_command
from onnxq.options import Options
from onnxq.ort.session import Session, inputs_of
from onnxq.quantized import Quantized

__all__ = ["SourceAgreement", "against_source"]

_SAMPLES = 3
_SECONDS = 2.0
"""A model that takes longer for one sample is run on no more."""
_AGREED = 30.0
"""dB from which on nothing is said: codes at ties, and other orders of summing."""
_MARGIN = 3.0
"""dB by which a result may be farther from the model given than that is from its own float model."""

Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SourceAgreement:
    """How far a result is from the quantized model it was made of, on random inputs.

    Attributes:
        samples: that were run.
        outputs: output name → error against the model given, no graph optimizations on either side.
        skipped: why nothing was run, else empty.
        warnings: what a user should know.
    """

    samples: int = 0
    outputs: Mapping[str, Errors] = field(default_factory=dict)
    skipped: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, see :func:`onnxq.measuring.outputs.worst_output`."""
        return worst_output(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        outputs = {name: errors.to_dict() for name, errors in self.outputs.items()}
        return {"samples": self.samples, "outputs": outputs, "skipped": self.skipped}


def against_source(source: ir.Model, inside: Quantized, result: ir.Model, options: Options) -> SourceAgreement:
    """Run a result and the model it was made of on random inputs.

    The numbers lie in the ranges that the quantizers of the model given hold; see
    :func:`onnxq.measuring.random_inputs.random_inputs`. Both are run as they are written. Where they differ more than
    the model given differs from its own float model, or the result is farther from that than the model given is, less
    or more rounding does not explain it: that is a warning.

    Args:
        source: the quantized model given.
        inside: what was read from it: its float model, and its numbers.
        result: what its artifact computes.
        options: custom operators and providers.
    """
    if is_random(inside.model):
        return SourceAgreement(skipped="it gives something else each time it runs")
    try:
        first, second = _session(source, options), _session(result, options)
        samples = _run(first, inside)
        errors = errors_of(second.run, samples) | _counted(second, samples)
        warnings = _judged(errors, samples, second, inside, options)
    except OnnxqError as error:
        return SourceAgreement(skipped=f"{error.where}: {error.what}" if error.where else error.what)
    return SourceAgreement(len(samples), errors, warnings=tuple(warnings))


def _session(model: ir.Model, options: Options) -> Session:
    return Session(
        model, optimize=False, providers=options.providers, custom_op_library=options.custom_op_library, prepack=False
    )


def _run(session: Session, inside: Quantized) -> list[tuple[Feeds, Feeds]]:
    """Random feeds and what the model given makes of them.

    Raises:
        OnnxqError: there are no random numbers for an input, or the model runs with no size of its free dimensions.
    """
    numbers = inside.qparams
    sites = [site for site in inside.plan.sites if site.role == "activation"]
    ranges = {site.tensor: (float(numbers[site.name].lo.min()), float(numbers[site.name].hi.max())) for site in sites}
    refused: OnnxqError | None = None
    free = any(not isinstance(dim, int) for info in inputs_of(inside.model) for dim in info.shape or ())
    for size in SIZES if free else SIZES[:1]:
        found: list[tuple[Feeds, Feeds]] = []
        try:
            for feeds in random_inputs(inside.model, ranges, size, _SAMPLES):
                start = time.perf_counter()
                found.append((feeds, session.run(feeds)))
                if time.perf_counter() - start > _SECONDS:
                    break
        except OnnxqError as error:
            refused = refused or error
            continue
        return found
    assert refused is not None
    raise refused


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
