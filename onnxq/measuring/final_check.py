"""The last check before a result is written: it is valid, it runs, and how far it is from the float model."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.sizes import typical
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ExecutionError, ModelError, VerificationError
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import file_size
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.chosen_rows import Rows, chosen_rows, matched
from onnxq.measuring.joined import JoinedMeter, hidden, partitions
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.timing import clock_of, glance
from onnxq.measuring.verification import Verification
from onnxq.memory import trim
from onnxq.ort.messages import node_in
from onnxq.ort.session import Session

__all__ = ["failed", "final_check"]

_POOR = 12.0
"""dB: a median sample below this is worth a warning where the total hides it."""


def final_check(
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
) -> Verification:
    """Check a result, run it with graph optimizations on and off, and measure it.

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

    Raises:
        VerificationError: the result is not a valid model, or onnxruntime cannot load or run it.
    """
    opened = partial(Session, providers=providers, custom_op_library=custom_op_library)
    try:
        check(result)
        optimized = opened(result, optimize=at_home, threads=1)
        rows = chosen_rows(reference)
        compared = _compared(reference, optimized, kept, rows)
        plain_sqnr = _worst_sqnr(opened(result, optimize=False), kept[:1], compared.first, rows) if at_home else None
    except (ExecutionError, ModelError) as error:
        raise failed(error, reference) from error
    float_seconds = result_seconds = None
    if kept and at_home:
        trim()  # the weights that are gone make room for those of the float model
        # its optimizations may break the float model, and its file may be gone: there is no speed to compare with
        with suppress(ExecutionError, ModelError):
            base = opened(reference if given is None else load(given, again=True), threads=1)
            float_seconds, result_seconds = glance(base, optimized, typical(kept).feeds, clock_of(providers))
    made = [v.name or "" for v in result.graph.outputs if v.name not in picked]
    return Verification(
        outputs=compared.outputs,
        plain_sqnr=plain_sqnr,
        samples=len(kept),
        float_bytes=float_bytes,
        quantized_bytes=file_size(result),
        speedup=float_seconds / result_seconds if float_seconds and result_seconds else None,
        float_seconds=float_seconds,
        warnings=tuple(_warnings(compared.outputs, made if kept else ())),
        branches=compared.hidden_branches(),
    )


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
            meters.setdefault(name, ErrorMeter()).update(values, found, sample.index)
            if name in joined:
                joined[name].update(values, found, sample.index)
    outputs = {info.name: meters[info.name].result() for info in session.outputs if info.name in meters}
    return _Compared(outputs, {name: meter.result() for name, meter in joined.items() if name in outputs}, first)


def _worst_sqnr(
    plain: Session, samples: Sequence[KeptSample], optimized: Mapping[str, NDArray[Any]], rows: Mapping[str, Rows]
) -> float | None:
    """SQNR in dB between the result with all graph optimizations and with none; the worst output of one sample."""
    found = []
    for sample in samples:
        for name, values in plain.run(sample.feeds).items():
            meter = ErrorMeter()
            meter.update(values, matched(values, optimized[name], rows.get(name)), sample.index)
            found.append(meter.result().sqnr)
    return min((sqnr for sqnr in found if sqnr == sqnr), default=None)


def _warnings(outputs: Mapping[str, Errors], made: Sequence[str]) -> Iterator[str]:
    """What a user should know of the comparison, of all outputs that the result has."""
    if others := [name for name in made if name not in outputs]:
        yield f"not compared with the float model, being no tensors: {', '.join(map(repr, others))}"
    for name, errors in outputs.items():
        if errors.median < _POOR <= errors.sqnr:
            yield (
                f"output {name!r}: {errors.sqnr:.0f} dB over all samples, but the median sample has "
                f"{errors.median:.0f} dB: a few samples of large values decide the ranges"
            )


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
