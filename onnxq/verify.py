"""A written artifact in the runtime that it was made for: what runs in integers, and how the numbers agree.

The reference is onnxruntime without any optimization, which computes QuantizeLinear and DequantizeLinear as they are
defined; for a float model with a table beside it, onnxq's own simulation of the two, run in the same way. Where no
runtime computes, that simulation is compared with the float model inside the artifact; where one does, both are, and
what the runtime loses no more than the simulation is no fault of it. Of a model that picks among what it has computed,
the tensors that it picks from are compared in place of what it picked: a copy of it that has them as outputs is run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import plugins
from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.calibration.data import open_data
from onnxq.calibration.usable import Usable
from onnxq.checks.data import Looker
from onnxq.checks.randomness import drawn_outputs, two_draws
from onnxq.console.progress import Reporter, Silent
from onnxq.deploying.unsigned_weights import overflowing, overflowing_weights
from onnxq.errors import OptionError
from onnxq.for_processor import reduces
from onnxq.given.artifact import no_quantizers, read_artifact, written_file
from onnxq.graph.files.load import load
from onnxq.graph.picking import Picking, picking
from onnxq.graph.shapes import forget_shapes, infer_shapes
from onnxq.integer_operators import quantizing
from onnxq.locations import find_artifact
from onnxq.measuring.agreement import Agreement
from onnxq.measuring.as_read import show_as_read
from onnxq.measuring.chosen_rows import chosen_rows, rows_said
from onnxq.measuring.figures import against_float, against_simulation
from onnxq.measuring.in_runtime import InRuntime, require_one_shape
from onnxq.measuring.layerwise import require_layers
from onnxq.measuring.loss import worse_in_runtime
from onnxq.measuring.metrics import Errors
from onnxq.measuring.outputs import marked, no_tensors
from onnxq.measuring.picked import said_of
from onnxq.measuring.run_in_float import run_in_float
from onnxq.measuring.side_by_side import plain_outputs, steps_of
from onnxq.options import ImageOptions, Options
from onnxq.options.one_value import plain
from onnxq.ort.inputs import inputs_of
from onnxq.quantized import Quantized
from onnxq.read import read
from onnxq.render.formats import write_rendered
from onnxq.render.reading.quantized_tensor import kinds_said
from onnxq.render.reading.quantizers import quantizers
from onnxq.runtimes.runtime import Examination, Runtime

__all__ = ["TIMEOUT", "can_be_read", "verify"]

Arrays = Mapping[str, NDArray[Any]]

TIMEOUT = 900.0
"""Seconds for a runtime, where nobody says."""
_NOTHING = ("nothing: give data (--data)", "nothing: no output is a tensor")
"""What was compared where no output was: without data, and with it."""
_ALIKE = (
    "nothing: all that is quantized here is rounded in the float model inside, too. onnxq compare FLOAT.onnx {path} "
    "--data DATA says how far it is from the model that was quantized"
)
_SAMPLES = 8


def verify(
    artifact: str | os.PathLike[str] | Quantized,
    data: Any = None,
    *,
    backend: str = "onnxruntime",
    samples: int | None = None,
    image: ImageOptions | None = None,
    simulation: bool = False,
    layers: bool = False,
    timeout: float = TIMEOUT,
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
        timeout: seconds for the runtime, for each of its two runs with ``layers``; infinite ones are no limit.
        reporter: shows progress.

    Raises:
        OutputError: there is no artifact.
        VerificationError: the runtime is not installed, or does not take the artifact.
        OptionError: layers are to be compared where no runtime computes, without data, or without quantizers; or the
            result was not written; or the timeout is not above 0; or samples differ in size, for a runtime that
            compiles for one.
        DataError: no sample can be used: each holds NaN or infinity, and the float model makes no number of it.
        BackendError: it is no artifact of the target: it cannot be read back, nothing in it is quantized, or another
            target's table lies beside it.
    """
    timeout = _seconds(timeout)
    if isinstance(artifact, Quantized):
        backend, artifact = artifact.backend.name, written_file(artifact)
    target, reporter = backend_named(backend), reporter or Silent()
    path = find_artifact(artifact, backend, beside=target.beside)
    runtime = _runtime_of(target, simulation=simulation, layers=layers)
    model = load(path)
    if layers:
        require_layers(model, data=data is not None)
    form, quantized = read_artifact(path, target)
    simulator = model if form == "onnx" else _rendered(quantized)
    alone = runtime is None or not runtime.runs
    by = _shown(simulator, quantized.model) if form == "onnx" or alone else Picking()
    feeds, indices = _taken(data, model, _SAMPLES if samples is None else samples, image)
    if runtime is not None and runtime.one_shape:
        require_one_shape(runtime, feeds)
    asked = None if runtime is None else InRuntime(runtime, feeds, timeout, reporter, target.runtime_file)
    rounded = bool(quantizing(quantized.model))
    alike = rounded and not quantized.qparams and alone
    shown = model if by.tensors and form == "onnx" else None
    beside = None if rounded else quantized.model
    seen = asked.whole(path, shown=shown, beside=beside) if asked is not None else Examination("", "")
    by_layer, missing = asked.by_layer(model) if asked is not None and layers else ((), None)
    with reporter.phase("run in onnxruntime", total=len(feeds)) as advance:
        simulated = plain_outputs(simulator, feeds, advance)
    floats = plain_outputs(quantized.model, feeds, lambda _: None)
    doubts = _remarks_on(quantized.model, feeds, floats, indices)
    told, rows = _but(by.outputs, simulated), chosen_rows(quantized.model)
    rows = {name: along for name, along in rows.items() if name not in by.outputs}
    if runtime is not None and runtime.runs:
        figures = against_simulation(runtime, _but(by.outputs, seen.outputs), told, floats, steps_of(quantized), rows)
        figures = replace(figures, against_float={}) if rounded else figures
    else:
        figures = against_float(target, runtime, told, floats, rows, rounded=rounded)
        figures = replace(figures, outputs={}) if alike else figures
    in_float = run_in_float(quantized.plan, runtime.title, seen.integer, seen.floating) if runtime is not None else []
    nothing = _ALIKE.format(path=shlex.quote(str(path))) if feeds and alike else _NOTHING[bool(feeds)]
    said = [said_of(by)] if by.tensors else []
    if worse_in_runtime(figures.against_float) and reduces(target, Options()):  # sums overflow on this processor
        said += overflowing(overflowing_weights(quantized))
    return Agreement(
        backend=backend,
        artifact=path,
        format=form,
        runtime=f"{runtime.title} {seen.version}" if runtime is not None else None,
        compared=figures.compared if figures.outputs else nothing,
        simulated=alone,
        outputs={n: _of_samples(e, indices) for n, e in marked(figures.outputs, drawn_outputs(model)).items()},
        lsb=figures.lsb,
        against_float=figures.against_float,
        integer=seen.integer,
        floating=seen.floating,
        speedup=seen.times[0] / seen.times[1] if seen.times is not None else None,
        timed=seen.timed,
        remarks=(*doubts, *seen.remarks, *in_float, *no_quantizers(quantized, model), *said, *rows_said(rows)),
        tensors=len(quantized.qparams),
        in_both=kinds_said(quantizers(quantized.model)),
        layers=by_layer,
        layers_missing=missing,
        steps=runtime.steps if runtime is not None else 0,
    )


def _taken(
    data: Any, model: ir.Model, samples: int, image: ImageOptions | None
) -> tuple[list[dict[str, Any]], list[int]]:
    """Samples to compare on, and their places in the data; none where there is no data."""
    if data is None:
        return [], []
    source = open_data(data, inputs_of(model), image=image, samples=samples)
    feeds = [dict(feed) for feed in source]
    return feeds, [source.index_of(position) for position in range(len(feeds))]


def _remarks_on(
    model: ir.Model, feeds: Sequence[Arrays], floats: Sequence[Arrays], indices: Sequence[int]
) -> tuple[str, ...]:
    """What makes figures of a float model doubtful: random numbers in it, and samples, by their places in the data.

    Raises:
        DataError: none of them can be used.
    """
    looker, usable = Looker.of(model), Usable()
    for index, feed, made in zip(indices, feeds, floats, strict=True):
        looker.look(feed, index)
        usable.look(feed, made, index)
    if usable.error is not None:
        raise usable.error
    sequences = [str(value.name) for value in model.graph.outputs if isinstance(value.type, ir.SequenceType)]
    return (*two_draws(model), *looker.warnings(), *no_tensors(sequences if feeds else (), (), "onnxruntime"))


def _of_samples(errors: Errors, indices: Sequence[int]) -> Errors:
    """Errors whose samples are named as in the data; ``indices``: of those that were run."""
    worst, largest = (None if at is None else indices[at] for at in (errors.worst_sample, errors.max_error_sample))
    return replace(errors, worst_sample=worst, max_error_sample=largest)


def _shown(model: ir.Model, inside: ir.Model) -> Picking:
    """What an artifact picks from, which becomes outputs of it and of the float model inside where both have all of it.

    Args:
        model: the artifact, changed in place.
        inside: the float model, changed in place.
    """
    infer_shapes(inside)
    by = picking(inside)
    made = {value.name for node in model.graph for value in node.outputs}
    if not made.issuperset(by.tensors):
        return Picking()
    for each in (model, inside):
        show_as_read(each, by.tensors)
    return by


def _but(names: Collection[str], outputs: Sequence[Arrays]) -> list[Arrays]:
    """Outputs without some."""
    return [{name: values for name, values in sample.items() if name not in names} for sample in outputs]


def _seconds(timeout: float) -> float:
    """A limit as a Python number.

    Raises:
        OptionError: it is not above 0.
    """
    timeout = plain(timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise OptionError(f"{timeout!r} is not a number of seconds above 0", where="timeout")
    return timeout


def _rendered(quantized: Quantized) -> ir.Model:
    """The simulation of a float model with a table beside it."""
    model = quantized.rendered()
    forget_shapes(model)
    return model


def _runtime_of(target: Backend, *, simulation: bool, layers: bool) -> Runtime | None:
    """The runtime to ask; None where there is none, or a simulation is wanted."""
    runtime: Runtime | None = None
    if target.runtime is not None and not simulation:
        runtime = plugins.find("onnxq.runtimes", target.runtime)
    if layers and (runtime is None or not runtime.runs):
        why = "only compiles" if runtime is not None else "is not asked" if simulation else "cannot be installed"
        raise OptionError(f"layers are compared in a runtime, and that of {target.name} {why}", hint="Leave it out")
    return runtime


def can_be_read(quantized: Quantized) -> bool:
    """Whether :func:`verify` can tell from the files written what is quantized how, and something is."""
    target = quantized.backend
    if not quantized.qparams:
        return False
    form = target.format_named(quantized.format)
    if form.read is not None or target.runtime is not None or form.write is write_rendered:
        return True
    return bool(quantized.files) and bool(read(quantized.files[0], backend=target.name).qparams)
