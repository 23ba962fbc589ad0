"""The last check before a result is written: it is valid, it runs, and how far it is from the float model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.sizes import other_sized, typical
from onnxq.calibration.statistics import KeptSample
from onnxq.checks.randomness import drawn_outputs
from onnxq.errors import ExecutionError, ModelError, VerificationError
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import file_size
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.chosen_rows import Rows, chosen_rows, matched
from onnxq.measuring.joined import JoinedMeter, hidden, partitions
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.outputs import marked, no_tensors
from onnxq.measuring.overflow import Sample, overflows
from onnxq.measuring.timing import Clock, clock_of, glance
from onnxq.measuring.verification import OtherSize, Verification
from onnxq.ort.messages import node_in
from onnxq.ort.session import Session
from onnxq.process.memory import trim

__all__ = ["FirstLook", "failed", "first_look", "uncompared"]

_SKEWED = 3.0
"""dB that the median sample is below all of them together, from which on a few samples make the figure of all."""
_POOR = 12.0
"""dB: a median sample below this is worth a warning where the total hides it."""

_SIMULATED = (
    "onnxruntime does not load the result, whose 4-bit floating-point numbers it has no kernels of: the figures are of "
    "a simulation in float"
)


def first_look(
    reference: ir.Model,
    result: ir.Model,
    kept: Sequence[KeptSample],
    *,
    float_bytes: int,
    given: ModelSource | None = None,
    providers: Sequence[str] | None = None,
    custom_op_library: str | None = None,
    at_home: bool = True,
    picked: Collection[str] = (),
    again: bool = False,
) -> FirstLook:
    """Check a result, run it and measure how far it is from float; :meth:`FirstLook.completed` checks the rest.

    Args:
        reference: the float model.
        result: the model to be written.
        kept: samples with the float model's outputs.
        float_bytes: size of the float model's file.
        given: the float model as it came, which the speed is relative to: what was done to it since may make it faster,
            or slower; None: ``reference``.
        providers: execution providers of onnxruntime.
        custom_op_library: shared library with the model's custom operators.
        at_home: onnxruntime is where the result will run: its optimizations are tried, and its speed is measured. Else
            the result is run as it is written, without any optimization.
        picked: outputs that are not to be compared, see :mod:`onnxq.graph.picking`.
        again: the result was looked at before and is loaded once more for the rest of its check: it is valid, and is
            run on one sample.

    Raises:
        VerificationError: the result is not a valid model, or onnxruntime cannot load or run it.
    """
    opened = partial(Session, providers=providers, custom_op_library=custom_op_library)
    try:
        if not again:
            check(result)
        optimized = opened(result, optimize=at_home, threads=1, timed=at_home)
        compared = _compared(reference, optimized, kept[:1] if again else kept, chosen_rows(reference))
    except (ExecutionError, ModelError) as error:
        raise failed(error, reference) from error
    made = [v.name or "" for v in result.graph.outputs if v.name not in picked]
    verification = Verification(
        outputs=compared.outputs,
        samples=len(kept),
        float_bytes=float_bytes,
        quantized_bytes=file_size(result),
        warnings=(
            *([_SIMULATED] if at_home and optimized.simulated else []),
            *_warnings(compared.outputs, made if kept else ()),
        ),
        branches=compared.hidden_branches(),
    )
    clock = clock_of(providers)
    return FirstLook(verification, reference, result, kept, given, opened, optimized, compared.first, at_home, clock)


@dataclass(frozen=True, eq=False)
class FirstLook:
    """A result that is valid and runs, loaded still, so that the rest of its check need not load it again.

    Attributes:
        verification: how far it is from float; neither its speed, nor whether graph optimizations change it.
    """

    verification: Verification
    _reference: ir.Model
    _result: ir.Model
    _kept: Sequence[KeptSample]
    _given: ModelSource | None
    _opened: Callable[..., Session]
    _optimized: Session
    _first: Mapping[str, NDArray[Any]]
    _at_home: bool
    _clock: Clock

    def completed(self) -> Verification:
        """The verification with what takes as long again and decides nothing: only results that are taken need it.

        Raises:
            VerificationError: onnxruntime cannot load or run the result without graph optimizations.
        """
        if not self._at_home:
            return self.verification
        try:
            plain = self._opened(self._result, optimize=False)
            samples = [(sample.feeds, plain.run(sample.feeds)) for sample in self._kept[:1]]
        except (ExecutionError, ModelError) as error:
            raise failed(error, self._reference) from error
        del plain
        rows = chosen_rows(self._reference)
        plain_sqnr = _worst_sqnr(samples, self._first, rows)
        lost = overflows(self._result, plain_sqnr, samples, rows, open_session=self._opened)
        timed: dict[str, Any] = self._timed() if self._kept else {}
        warnings = (*self.verification.warnings, *lost)
        return replace(self.verification, plain_sqnr=plain_sqnr, warnings=warnings, **timed)

    def _timed(self) -> dict[str, Any]:
        """The speed, as fields of a verification; none where the float model does not run."""
        trim()  # the weights that are gone make room for those of the float model
        found: dict[str, Any] = {}
        # its optimizations may break the float model, and its file may be gone: there is no speed to compare with
        with suppress(ExecutionError, ModelError):
            given = self._reference if self._given is None else load(self._given, again=True)
            base = self._opened(given, threads=1, timed=True)
            before, after = glance(base, self._optimized, typical(self._kept).feeds, self._clock)
            found = {"float_seconds": before, "speedup": before / after if before and after else None}
            if (other := other_sized(self._kept)) is not None:
                sample, name = other
                before, after = glance(base, self._optimized, sample.feeds, self._clock)
                if before and after:
                    shape = sample.feeds[name].shape
                    found["other_size"] = OtherSize(sample.place, name, shape, before / after, before)
        return found


@dataclass(frozen=True)
class _Compared:
    """Errors against the float model.

    Attributes:
        outputs: of each output that is a tensor.
        branches: of what a Concat joins in an output.
        first: what the result gave for the first sample.
    """

    outputs: dict[str, Errors]
    branches: dict[str, dict[str, Errors]]
    first: Mapping[str, NDArray[Any]]

    def hidden_branches(self) -> dict[str, dict[str, Errors]]:
        """Those of which one has lost much that the figure of the whole output does not show."""
        return {n: found for n, found in self.branches.items() if hidden(self.outputs[n], found) is not None}


def _compared(reference: ir.Model, session: Session, kept: Sequence[KeptSample], rows: Mapping[str, Rows]) -> _Compared:
    """Run the result on samples with the float model's outputs."""
    meters: dict[str, ErrorMeter] = {}
    joined = {name: JoinedMeter(found) for name, found in (partitions(reference) if kept else {}).items()}
    first: Mapping[str, NDArray[Any]] = {}
    for sample in kept:
        got = session.run(sample.feeds)
        first = first or got
        for name, values in sample.outputs.items():
            found = matched(values, got[name], rows.get(name))
            meters.setdefault(name, ErrorMeter()).update(values, found, sample.place)
            if name in joined:
                joined[name].update(values, found, sample.place)
    outputs = {info.name: meters[info.name].result() for info in session.outputs if info.name in meters}
    outputs = marked(outputs, drawn_outputs(reference))
    return _Compared(outputs, {name: meter.result() for name, meter in joined.items() if name in outputs}, first)


def _worst_sqnr(
    samples: Sequence[Sample], optimized: Mapping[str, NDArray[Any]], rows: Mapping[str, Rows]
) -> float | None:
    """SQNR in dB between the result with all graph optimizations and with none; the worst output of one sample."""
    found = []
    for _, plain in samples:
        for name, values in plain.items():
            meter = ErrorMeter()
            meter.update(values, matched(values, optimized[name], rows.get(name)))
            found.append(meter.result().sqnr)
    return min((sqnr for sqnr in found if sqnr == sqnr), default=None)


def _warnings(outputs: Mapping[str, Errors], made: Sequence[str]) -> Iterator[str]:
    """What a user should know of the comparison, of all outputs that the result has."""
    yield from no_tensors(made, outputs, "the float model")
    yield from uncompared(outputs)
    for name, errors in outputs.items():
        if errors.median < _POOR <= errors.sqnr and errors.median < errors.sqnr - _SKEWED:
            yield (
                f"output {name!r}: {errors.sqnr:.0f} dB over all samples, but the median sample has "
                f"{errors.median:.0f} dB: a few samples of large values decide the ranges"
            )


def uncompared(outputs: Mapping[str, Errors]) -> list[str]:
    """What to say of outputs of which no number was compared, though there were some to compare."""
    names = [repr(name) for name, errors in outputs.items() if errors.skipped and not errors.elements]
    if not names:
        return []
    which = f"output{'s' * (len(names) > 1)} {', '.join(names)}"
    return [
        f"{which}: nothing was compared, for the float model gives nothing but NaN, infinity and values of masks "
        "there: look at the data"
    ]


def failed(error: ExecutionError | ModelError, reference: ir.Model) -> VerificationError:
    """What a final check raises where a result is invalid or does not run.

    Args:
        error: of the check, or of onnxruntime.
        reference: the float model; a node that it has can be kept float.
    """
    name = node_in(str(error))
    keep = "Keep the layers around it float with --exclude"
    if name is not None and any(node.name == name for node in all_nodes(reference)):
        keep = f"Keep that node float with --exclude {shlex.quote(name)}"
    reason = f"{error.where}: {error.what}" if error.where else error.what
    return VerificationError(
        f"the quantized model failed its final check ({reason})", hint=f"Nothing was written. {keep}"
    )
