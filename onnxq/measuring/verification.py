"""What running a result showed, as it is kept and told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxq.measuring.metrics import Errors, jsonable
from onnxq.measuring.outputs import worst_output

__all__ = ["OtherSize", "SourceAgreement", "Verification"]


@dataclass(frozen=True)
class OtherSize:
    """The speed on a sample much larger than the typical one: a prompt, where others are single tokens.

    Attributes:
        sample: its place in the data.
        input: the input that it gives so much more of.
        shape: of that.
        speedup: as in :class:`Verification`.
        float_seconds: likewise.
    """

    sample: int
    input: str
    shape: tuple[int, ...]
    speedup: float
    float_seconds: float

    @property
    def where(self) -> str:
        """The sample in words: ``sample 5 (input_ids 1x54)``."""
        return self.where_with()

    def where_with(self, *more: str) -> str:
        """The sample in words, and more of it: ``sample 5 (input_ids 1x54, 2.0 ms)``."""
        told = f"{self.input} {'x'.join(map(str, self.shape)) or 'scalar'}"
        return f"sample {self.sample} ({', '.join((told, *more))})"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        times = {"speedup": self.speedup, "float_seconds": self.float_seconds}
        return {"sample": self.sample, "input": self.input, "shape": list(self.shape), **times}


@dataclass(frozen=True)
class SourceAgreement:
    """How far a result is from the quantized model it was made of, on random inputs.

    Attributes:
        samples: that both were run on.
        outputs: output name → error against the model given, no graph optimizations on either side.
        ran: random inputs that the result was run on, at home with graph optimizations too.
        given_bytes: size of the model given, with its data, as a file.
        plain_sqnr: SQNR in dB between the result with all graph optimizations and with none; the worst output.
        overflows: what to say of integer kernels of this processor, see :mod:`onnxq.measuring.overflow`.
        skipped: why the two were not compared, else empty.
        warnings: what a user should know.
    """

    samples: int = 0
    outputs: Mapping[str, Errors] = field(default_factory=dict)
    ran: int = 0
    given_bytes: int = 0
    plain_sqnr: float | None = None
    overflows: tuple[str, ...] = ()
    skipped: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, see :func:`onnxq.measuring.outputs.worst_output`."""
        return worst_output(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        outputs = {name: errors.to_dict() for name, errors in self.outputs.items()}
        sizes = {"samples": self.samples, "ran": self.ran, "given_bytes": self.given_bytes}
        return {**sizes, "outputs": outputs, "skipped": self.skipped}


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
        quantized_bytes: size of the result: of the files that its target runs, once they are written.
        speedup: time of the float model as it came (in half precision: in float32) over that of the result on one
            thread, on the typical sample, in this run; ``None`` without samples, and where onnxruntime's optimizations
            break the float model.
        float_seconds: time of the float model, likewise.
        other_size: both on a much larger sample; ``None`` where none gives four times as much of an input.
        warnings: what a user should know.
        against_source: how it agrees with the quantized model it was made of, where it was made of one.
        loaded: whether onnxruntime loaded it; not where it is for an execution provider that is not here.
    """

    outputs: Mapping[str, Errors] = field(default_factory=dict)
    plain_sqnr: float | None = None
    samples: int = 0
    float_bytes: int = 0
    quantized_bytes: int = 0
    speedup: float | None = None
    float_seconds: float | None = None
    other_size: OtherSize | None = None
    warnings: tuple[str, ...] = ()
    against_source: SourceAgreement | None = None
    branches: Mapping[str, Mapping[str, Errors]] = field(default_factory=dict)
    loaded: bool = True

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
            "loaded": self.loaded,
            "warnings": list(self.warnings),
            **({"other_size": self.other_size.to_dict()} if self.other_size is not None else {}),
            **({"against_source": self.against_source.to_dict()} if self.against_source is not None else {}),
        }
