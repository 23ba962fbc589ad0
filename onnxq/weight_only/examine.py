"""The last check of a result, from its file, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ExecutionError, ModelError
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import file_size, serialized_size
from onnxq.measuring.final_check import failed, first_look, uncompared
from onnxq.measuring.metrics import ErrorMeter
from onnxq.measuring.verification import Verification
from onnxq.options import Options
from onnxq.ort.absent import absent_providers
from onnxq.ort.fp4_in_float import in_float
from onnxq.ort.session import Session
from onnxq.weight_only.activations import Activations
from onnxq.weight_only.segments import SegmentedModel
from onnxq.weight_only.tensors import in_memory

__all__ = ["Reference", "examine"]

_WHOLE_BYTES = 512 << 20
"""A float model up to this size is run as a whole, and timed."""
_SEGMENT_BYTES = 16 << 20
"""Integers of a segment of the result, of which onnxruntime makes several copies when it fuses pairs."""
_SAMPLES = 8


@dataclass(eq=False)
class Reference:
    """What the float model gave.

    Attributes:
        feeds: the samples.
        outputs: its outputs, by name and sample.
        held: positions of the samples that nothing was learned from.
        places: of the samples in the data that they were drawn from.
    """

    feeds: Sequence[Mapping[str, Any]] = ()
    outputs: Activations = field(default_factory=Activations)
    held: Sequence[int] = ()
    places: Sequence[int] = ()

    def close(self) -> None:
        """Forget it."""
        self.outputs.close()

    def kept(self, names: Sequence[str]) -> list[KeptSample]:
        """At most 8 samples with the float model's outputs, of those that nothing was learned from."""
        some = spread(self.held, _SAMPLES)
        outputs = {i: {name: self.outputs.get(name, i) for name in names} for i in some}
        return [KeptSample(i, dict(self.feeds[i]), outputs[i], source=self.places[i]) for i in some]


def examine(
    written: Path,
    model: ir.Model,
    reference: Reference,
    options: Options,
    *,
    float_bytes: int,
    at_home: bool = True,
) -> Verification:
    """Check, load and run a result.

    A small model is run as a whole, with and without graph optimizations, and timed. A big one is loaded as a whole
    without copies of its weights, and run in segments. Without data, for providers that are not here, it is neither
    loaded nor run, and a warning says so.

    Args:
        written: its file.
        model: the float model.
        reference: samples and what the float model gave.
        options: providers and the library of custom operators.
        float_bytes: size of the float model.
        at_home: onnxruntime is where the result will run; else it is not timed, and a big one is not loaded as a whole.

    Raises:
        VerificationError: it is not a valid model, or onnxruntime cannot load or run it.
    """
    result = load(written)
    size = file_size(result)
    if (absent := absent_providers(options.providers)) and not reference.feeds:
        return _unloaded(result, model, absent, Verification(float_bytes=float_bytes, quantized_bytes=size))
    kept = reference.kept([value.name or "" for value in model.graph.outputs if value.producer() is not None])
    if serialized_size(model) <= _WHOLE_BYTES:
        for value in result.graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype.bitwidth < 8:
                value.const_value = in_memory(value.const_value)
        if at_home:
            Session(written, **options.session)
        look = first_look(model, result, kept, float_bytes=float_bytes, at_home=at_home, **options.session)
        checked = look.completed()
        return replace(checked, quantized_bytes=size)
    try:
        check(result)
        if at_home:
            Session(written, optimize=False, prepack=False, **options.session)
        outputs = _errors(in_float(result) or result, kept, options)
    except (ExecutionError, ModelError) as error:
        raise failed(error, model) from error
    checked = Verification(outputs=outputs, samples=len(kept), float_bytes=float_bytes, quantized_bytes=size)
    return replace(checked, warnings=tuple(uncompared(outputs)))


def _unloaded(result: ir.Model, model: ir.Model, absent: Sequence[str], sizes: Verification) -> Verification:
    """Check that a result for providers that are not here is valid ONNX, and say that this is all that was checked."""
    try:
        check(result)
    except ModelError as error:
        raise failed(error, model) from error
    told = (
        f"not loaded: the onnxruntime installed here has no {', '.join(absent)}. That it loads and what it computes "
        "there was not verified: run it there, and compare it with the float model before you rely on it"
    )
    return replace(sizes, loaded=False, warnings=(told,))


def _errors(result: ir.Model, kept: Sequence[KeptSample], options: Options) -> dict[str, Any]:
    if not kept:
        return {}
    got = Activations()
    try:
        run = SegmentedModel(result, options=options, limit=_SEGMENT_BYTES)
        for _ in run.run([sample.feeds for sample in kept], got):
            pass
        meters = {name: ErrorMeter() for name in kept[0].outputs}
        for position, sample in enumerate(kept):
            for name, values in sample.outputs.items():
                meters[name].update(values, got.get(name, position), sample.place)
        return {name: meter.result() for name, meter in meters.items()}
    finally:
        got.close()
