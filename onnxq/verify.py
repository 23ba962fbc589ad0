"""A written artifact in the runtime that it was made for: what runs in integers, and how the numbers agree.

The reference is onnxruntime without any optimization, which computes QuantizeLinear and DequantizeLinear as they are
defined; for a float model with a table beside it, onnxq's own simulation of the two, run in the same way. Where no
runtime computes, that simulation is compared with the float model inside the artifact; where one does, both are, and
what the runtime loses no more than the simulation is no fault of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxq import plugins
from onnxq.calibration.data import open_data
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import decibels, plural
from onnxq.errors import OptionError, VerificationError
from onnxq.given.artifact import no_quantizers, read_artifact, rewritten_before, written_file
from onnxq.graph.files.load import load
from onnxq.graph.shapes import forget_shapes
from onnxq.locations import find_artifact
from onnxq.measuring.layerwise import LayerAgreement, compare_layers, require_layers
from onnxq.measuring.loss import Loss, losses
from onnxq.measuring.metrics import Errors, jsonable
from onnxq.measuring.outputs import worst_output
from onnxq.measuring.run_in_float import run_in_float
from onnxq.measuring.side_by_side import errors_between, plain_outputs, steps_of
from onnxq.options import ImageOptions, Options
from onnxq.ort.session import inputs_of
from onnxq.prepare import backend_named
from onnxq.quantize import read
from onnxq.quantized import Quantized
from onnxq.render.formats import write_rendered
from onnxq.runtimes.child import examine
from onnxq.runtimes.runtime import Examination, Runtime

__all__ = ["Agreement", "can_be_read", "verify"]

_SAMPLES = 8
_AGREEMENT = 30.0
"""dB to which a runtime and onnxruntime agree on the same integers."""


@dataclass(frozen=True)
class Agreement:
    """What verifying an artifact showed.

    Attributes:
        backend: the target.
        artifact: the ONNX model that was verified.
        format: how it was read: one of the target's formats, or ``"onnx"`` for a model with quantizers in it.
        runtime: name and version of the real runtime, ``None`` where there is none to install or none was asked.
        compared: what the figures compare.
        simulated: no runtime computed: the figures say what quantization costs, not how two runtimes agree.
        outputs: output → error of one against the other; empty where the runtime only compiles.
        lsb: output → the largest difference in steps of its quantizer, for the outputs that have one; empty where
            ``simulated``.
        against_float: output → what it loses against the float model inside; empty where no runtime computed.
        integer: operators that the runtime computes in integers.
        floating: operators that it computes in float.
        remarks: what else the runtime said.
        tensors: number of tensors with a scale.
        layers: the integers of every tensor, each layer computed from equal ones; empty where not asked for.
        layers_missing: why there are none though they were asked for: the runtime took too long over the parts, say.
        steps: by how many steps an integer of a layer is known to differ in this runtime.
    """

    backend: str
    artifact: Path
    format: str
    runtime: str | None
    compared: str
    simulated: bool
    outputs: Mapping[str, Errors] = field(default_factory=dict)
    lsb: Mapping[str, float] = field(default_factory=dict)
    against_float: Mapping[str, Loss] = field(default_factory=dict)
    integer: tuple[str, ...] = ()
    floating: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    tensors: int = 0
    layers: tuple[LayerAgreement, ...] = ()
    layers_missing: str | None = None
    steps: int = 0

    @property
    def ok(self) -> bool:
        """Whether the artifact does what it should, by the floors of :meth:`agrees`."""
        return self.agrees()

    def agrees(self, *, min_sqnr: float | None = None, max_steps: int | None = None) -> bool:
        """Whether :meth:`faults` finds none."""
        return not self.faults(min_sqnr=min_sqnr, max_steps=max_steps)

    def faults(self, *, min_sqnr: float | None = None, max_steps: int | None = None) -> list[str]:
        """Why the artifact does not do what it should, a sentence each.

        Args:
            min_sqnr: dB that every output has at least. By default 10 in a simulation, and where a runtime computed 30,
                unless it loses as little against the float model as the simulation does.
            max_steps: steps by which an integer of a layer is off at most; those of this runtime by default.

        Returns:
            One for each output below the floor or of another shape, and for layers that are off or were not compared.
        """
        floor = min_sqnr if min_sqnr is not None else Options().min_sqnr if self.simulated else _AGREEMENT
        most = self.steps if max_steps is None else max_steps
        found = []
        for name, errors in self.outputs.items():
            loss = self.against_float.get(name)
            if errors.reshaped:
                found += [] if self.simulated else [f"output {name!r} has another shape"]
            elif errors.sqnr < floor and not (min_sqnr is None and loss is not None and loss.is_that_of_quantizing):
                lost = ""
                if loss is not None:
                    both = f"{decibels(loss.runtime)}, {decibels(loss.simulation)} in simulation"
                    lost = f"; against float it has {both}"
                found.append(f"output {name!r} has {decibels(errors.sqnr)}, the floor is {floor:g} dB{lost}")
        if self.layers_missing is not None:
            found.append("the layers were not compared")
        if off := [layer for layer in self.layers if layer.steps > most]:
            found.append(f"the integers of {plural(len(off), 'layer')} are off by more than {plural(most, 'step')}")
        return found

    @property
    def may_be_split(self) -> bool:
        """Whether layers can be compared, and were not."""
        return not (self.simulated or self.layers or self.layers_missing) and self.format == "onnx" and self.tensors > 0

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, see :func:`onnxq.measuring.outputs.worst_output`."""
        return worst_output(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "backend": self.backend,
            "artifact": str(self.artifact),
            "format": self.format,
            "runtime": self.runtime,
            "compared": self.compared,
            "simulated": self.simulated,
            "tensors": self.tensors,
            "outputs": {name: errors.to_dict() for name, errors in self.outputs.items()},
            "lsb": {name: jsonable(value) for name, value in self.lsb.items()},
            "against_float": {name: loss.to_dict() for name, loss in self.against_float.items()},
            "integer": list(self.integer),
            "floating": list(self.floating),
            "remarks": list(self.remarks),
            "layers": [layer.to_dict() for layer in self.layers],
            "layers_missing": self.layers_missing,
        }


def verify(
    artifact: str | os.PathLike[str] | Quantized,
    data: Any = None,
    *,
    backend: str = "onnxruntime",
    samples: int | None = None,
    image: ImageOptions | None = None,
    simulation: bool = False,
    layers: bool = False,
    timeout: float = 900.0,
    reporter: Reporter | None = None,
) -> Agreement:
    """Load an artifact into the runtime it was made for and compare what it computes with onnxruntime.

    Where no runtime can be installed, or it only compiles, the artifact is read back, which checks its format and its
    names, and its simulation in onnxruntime is compared with the float model inside.

    Args:
        artifact: the ONNX model that was written, or the folder it was written to; or a result that has its ``files``.
        data: samples, see :func:`onnxq.calibration.data.open_data`; a runtime that only compiles needs none.
        backend: the target it was made for; a result knows its own.
        samples: at most this many samples, spread over all; None takes 8.
        image: how to read pictures, where the data is a folder of them.
        simulation: do not ask for the runtime, simulate only.
        layers: compare layer by layer as well, from equal integers. Over a whole network the differences of a step add
            up, and the outputs say little about the arithmetic. A runtime that fails at the parts is no error.
        timeout: seconds for the runtime, for each of its two runs with ``layers``.
        reporter: shows progress.

    Raises:
        OutputError: there is no artifact.
        VerificationError: the runtime is not installed, or does not take the artifact.
        OptionError: layers are to be compared where no runtime computes, without data, or without quantizers; or the
            result was not written.
        BackendError: it is no artifact of the target: it cannot be read back, nothing in it is quantized, or another
            target's table lies beside it.
    """
    if isinstance(artifact, Quantized):
        backend, artifact = artifact.backend.name, written_file(artifact)
    target, reporter = backend_named(backend), reporter or Silent()
    path = find_artifact(artifact, backend)
    runtime: Runtime | None = None
    if target.runtime is not None and not simulation:
        runtime = plugins.find("onnxq.runtimes", target.runtime)
    if layers and (runtime is None or not runtime.runs):
        why = "only compiles" if runtime is not None else "is not asked" if simulation else "cannot be installed"
        raise OptionError(f"layers are compared in a runtime, and that of {target.name} {why}", hint="Leave it out")
    model = load(path)
    if layers:
        require_layers(model, data=data is not None)
    form, quantized = read_artifact(path, target)
    feeds = []
    if data is not None:
        wanted = _SAMPLES if samples is None else samples
        feeds = [dict(f) for f in open_data(data, inputs_of(model), image=image, samples=wanted)]
    seen = Examination("", "")
    if runtime is not None:
        with reporter.phase(f"load in {runtime.title}", total=1, unit="models") as advance:
            seen = examine(runtime, path, feeds, timeout=timeout)
            advance(1)
    compared_layers: tuple[LayerAgreement, ...] = ()
    missing = None
    if runtime is not None and layers:
        with reporter.phase(f"layer by layer in {runtime.title}", total=1, unit="models") as advance:
            try:
                compared_layers = compare_layers(model, runtime, feeds, timeout=timeout)
            except VerificationError as error:
                missing = error.what
            advance(1)
    simulated = model if form == "onnx" else quantized.rendered()
    if form != "onnx":
        forget_shapes(simulated)
    with reporter.phase("run in onnxruntime", total=len(feeds)) as advance:
        reference = plain_outputs(simulated, feeds, advance)
    computed = runtime is not None and runtime.runs
    in_float = run_in_float(quantized.plan, runtime.title, seen.integer, seen.floating) if runtime is not None else []
    inside = plain_outputs(quantized.model, feeds, lambda _: None)
    lost: dict[str, Loss] = {}
    if runtime is not None and runtime.runs:
        compared = f"{runtime.title} against onnxruntime without optimizations"
        errors, lsb = errors_between(list(zip(reference, seen.outputs, strict=True)), steps_of(quantized))
        lost = losses(inside, reference, seen.outputs)
    else:
        what = f"{runtime.title} compiled it, without running it; " if runtime is not None else ""
        compared = f"{what}simulated in onnxruntime, against the float model inside{rewritten_before(target)}"
        errors, lsb = errors_between(list(zip(inside, reference, strict=True)), {})
    return Agreement(
        backend=backend,
        artifact=path,
        format=form,
        runtime=f"{runtime.title} {seen.version}" if runtime is not None else None,
        compared=compared,
        simulated=not computed,
        outputs=errors,
        lsb=lsb,
        against_float=lost,
        integer=seen.integer,
        floating=seen.floating,
        remarks=(*seen.remarks, *in_float, *no_quantizers(quantized, model)),
        tensors=len(quantized.qparams),
        layers=compared_layers,
        layers_missing=missing,
        steps=runtime.steps if runtime is not None else 0,
    )


def can_be_read(quantized: Quantized) -> bool:
    """Whether :func:`verify` can tell from the files written what is quantized how."""
    target = quantized.backend
    form = target.format_named(quantized.format)
    if form.read is not None or target.runtime is not None or form.write is write_rendered:
        return True
    return bool(quantized.files) and bool(read(quantized.files[0], backend=target.name).qparams)
