"""The last check before a result is written: it is valid, it runs, and how far it is from the float model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxq.calibration.sizes import typical
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ExecutionError, ModelError, VerificationError
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import file_size
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.chosen_rows import chosen_rows, matched
from onnxq.measuring.joined import JoinedMeter, hidden, partitions
from onnxq.measuring.metrics import ErrorMeter, Errors, jsonable
from onnxq.measuring.outputs import worst_output
from onnxq.measuring.timing import clock_of, glance
from onnxq.memory import trim
from onnxq.ort.messages import node_in
from onnxq.ort.session import Session

if TYPE_CHECKING:
    from onnxq.measuring.against_source import SourceAgreement

__all__ = ["Verification", "failed", "final_check"]

_PLAIN_SAMPLES = 1
_POOR = 12.0
"""dB: a median sample below this is worth a warning where the total hides it."""


@dataclass(frozen=True)
class Verification:
    """What running a result showed.

    Attributes:
        outputs: output name → error against the float model on the kept samples, all graph optimizations on.
        branches: output name → branch → its errors, where an output is what a Concat joins and one of its branches has
            lost much that the figure of all does not show.
        plain_sqnr: SQNR in dB between the result with all graph optimizations and with none; the worst output.
        samples: number of samples that were run.
        float_bytes: size of the float model as a file.
        quantized_bytes: size of the result as a file.
        speedup: time of the float model over that of the result on one thread, in this run; ``None`` without samples,
            and where onnxruntime's optimizations break the float model.
        float_seconds: time of the float model, likewise.
        warnings: what a user should know.
        against_source: how it agrees with the quantized model it was made of, where it was made of one.
    """

    outputs: Mapping[str, Errors] = field(default_factory=dict)
    plain_sqnr: float | None = None
    samples: int = 0
    float_bytes: int = 0
    quantized_bytes: int = 0
    speedup: float | None = None
    float_seconds: float | None = None
    warnings: tuple[str, ...] = ()
    against_source: SourceAgreement | None = None
    branches: Mapping[str, Mapping[str, Errors]] = field(default_factory=dict)

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, see :func:`onnxq.measuring.outputs.worst_output`."""
        return worst_output(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "samples": self.samples,
            "outputs": {name: errors.to_dict() for name, errors in self.outputs.items()},
            "branches": {name: {b: e.to_dict() for b, e in found.items()} for name, found in self.branches.items()},
            "sqnr_optimized_against_plain": jsonable(self.plain_sqnr),
            "float_bytes": self.float_bytes,
            "quantized_bytes": self.quantized_bytes,
            "speedup": self.speedup,
            "float_seconds": self.float_seconds,
            "warnings": list(self.warnings),
            **({"against_source": self.against_source.to_dict()} if self.against_source is not None else {}),
        }


def final_check(
    reference: ir.Model,
    result: ir.Model,
    kept: Sequence[KeptSample],
    *,
    float_bytes: int,
    providers: Sequence[str] | None = None,
    custom_op_library: str | None = None,
    at_home: bool = True,
) -> Verification:
    """Check a result, run it with graph optimizations on and off, and measure it.

    Args:
        reference: the float model.
        result: the model to be written.
        kept: samples with the float model's outputs.
        float_bytes: size of the float model's file.
        providers: execution providers of onnxruntime.
        custom_op_library: shared library with the model's custom operators.
        at_home: onnxruntime is where the result will run: its optimizations are tried, and its speed is measured. Else
            the result is run as it is written, without any optimization.

    Raises:
        VerificationError: the result is not a valid model, or onnxruntime cannot load or run it.
    """
    warnings: list[str] = []
    try:
        check(result)
        opened = partial(Session, providers=providers, custom_op_library=custom_op_library)
        optimized = opened(result, optimize=at_home, threads=1)
        plain = opened(result, optimize=False) if at_home else None
        meters: dict[str, ErrorMeter] = {info.name: ErrorMeter() for info in optimized.outputs}
        agreement: dict[str, ErrorMeter] = {info.name: ErrorMeter() for info in optimized.outputs}
        rows = chosen_rows(reference)
        parts = {name: JoinedMeter(found) for name, found in (partitions(reference) if kept else {}).items()}
        for position, sample in enumerate(kept):
            got = optimized.run(sample.feeds)
            for name, values in sample.outputs.items():
                found = matched(values, got[name], rows.get(name))
                meters[name].update(values, found, sample.index)
                if name in parts:
                    parts[name].update(values, found, sample.index)
            if plain is not None and position < _PLAIN_SAMPLES:
                for name, values in plain.run(sample.feeds).items():
                    agreement[name].update(values, matched(values, got[name], rows.get(name)), sample.index)
    except (ExecutionError, ModelError) as error:
        raise failed(error, reference) from error
    compared = {name for sample in kept for name in sample.outputs}
    outputs = {name: meter.result() for name, meter in meters.items() if name in compared}
    branches = {name: meter.result() for name, meter in parts.items() if name in compared}
    if kept and (others := [v.name for v in result.graph.outputs if v.name not in compared]):
        warnings.append(f"not compared with the float model, being no tensors: {', '.join(map(repr, others))}")
    for name, errors in outputs.items():
        if errors.median < _POOR <= errors.sqnr:
            warnings.append(
                f"output {name!r}: {errors.sqnr:.0f} dB over all samples, but the median sample has "
                f"{errors.median:.0f} dB: a few samples of large values decide the ranges"
            )
    plain_sqnr = [e.sqnr for e in (m.result() for m in agreement.values()) if kept and e.sqnr == e.sqnr]
    speedup = float_seconds = None
    if kept and at_home:
        del plain  # its weights make room for those of the float model
        trim()
        with suppress(ExecutionError):  # its optimizations may break the float model: there is no speed to compare with
            base = opened(reference, threads=1)
            float_seconds, result_seconds = glance(base, optimized, typical(kept).feeds, clock_of(providers))
            speedup = float_seconds / result_seconds
    return Verification(
        outputs=outputs,
        plain_sqnr=min(plain_sqnr, default=None),
        samples=len(kept),
        float_bytes=float_bytes,
        quantized_bytes=file_size(result),
        speedup=speedup,
        float_seconds=float_seconds,
        warnings=tuple(warnings),
        branches={name: found for name, found in branches.items() if hidden(outputs[name], found) is not None},
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
