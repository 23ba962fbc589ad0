"""Training a quantized model on its ONNX graph, with no source code of the model and no labels.

The float model is the teacher: the quantized one learns, by gradient through straight-through rounding, to give the
same outputs (and the same tensors inside) on the samples given. Of the samples held back, one half chooses among the
states of the training; the other, by which nothing was chosen, decides in onnxruntime whether that one is better than
the model given.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.chance import drawn, one_of_each_pair
from onnxq.calibration.data import open_data
from onnxq.calibration.statistics import KeptSample
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import decibel, decibels, plural
from onnxq.errors import DataError, ModelError, OptionError
from onnxq.graph.shapes import forget_shapes
from onnxq.integer_operators import quantizing
from onnxq.locations import artifact_path, require_file, require_output, spare
from onnxq.measuring.final_check import final_check
from onnxq.measuring.outputs import worst_sqnr
from onnxq.measuring.rescaled import rescaled_apart
from onnxq.notes.aloud import say
from onnxq.notes.reasons import counts
from onnxq.options import ImageOptions, Options
from onnxq.options.one_value import check_int, plain
from onnxq.ort.session import Session, inputs_of
from onnxq.prepare import Prepared, Source
from onnxq.quantized import Quantized
from onnxq.read import read

__all__ = ["finetune"]

Feeds = Mapping[str, NDArray[Any]]

_MOST_FEATURES = 16
_LEAST_SAMPLES = 2
_GAIN, _ROUGH = 0.5, 10.0
"""dB by which the judging samples must be better in onnxruntime, and a tenth of what the model given has beyond so
many: the better it is, the fewer decisions an error can change, and to the worse as often as to the better. An
effnet_lite0 of 8 bits and 25.0 dB came to 25.9 dB, and agreed with the float model on 138 of 150 photographs instead of
143."""
_DEFAULT_STEPS, _MOST_STEPS = 400, 1_000_000
"""Without a limit, and where time is the only one."""
_RATE, _FEW_BITS = 0.01, 4
"""Learning rate of weights in units of their scale, and up to how many bits."""
_THE_SAME = "Give the float model that was quantized"


def finetune(
    quantized: Quantized | Source,
    data: Any,
    *,
    teacher: Source,
    backend: str = "onnxruntime",
    output: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch: int = 8,
    lr: float | None = None,
    scale_lr: float = 1e-3,
    bias_lr: float = 0.02,
    vary: float = 0.5,
    features: float = 1.0,
    loss: Callable[[Mapping[str, Any], Mapping[str, Any]], Any] | None = None,
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    resume: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> Quantized:
    """Train weights, scales and biases of a quantized model. Needs torch.

    Args:
        quantized: what :func:`onnxq.quantize` gave, or a QDQ or FakeQuantize model; left unchanged.
        data: samples without labels, see :func:`onnxq.calibration.data.open_data`; one of every four is held back.
        teacher: the float model, as it was given to :func:`onnxq.quantize`.
        backend: the target, where ``quantized`` is a file.
        output: where to write the artifact: a file, or a folder. Nothing is written without it.
        steps: of Adam; its learning rates fall to zero over them as half a cosine. None are 400, or, with ``minutes``,
            as many as there is time for.
        minutes: stop after this time, with the best found so far; the learning rates fall to zero by then.
        batch: samples in a step.
        lr: step of weights, in units of their scale. None goes by the fewest bits of a tensor: 0.01 up to 4, half of
            that for each bit more: where little is wrong, little is to be changed.
        scale_lr: step of the logarithm of scales.
        bias_lr: step of biases, in units of the noise that rounding makes.
        vary: share of the samples that are varied: pictures turned, cropped, flipped and coloured, float inputs mixed
            with another sample's. The teacher judges what comes out, so few samples become many.
        features: weight of tensors inside beside the outputs; 0 looks at the outputs alone.
        loss: (outputs, teacher's outputs), tensors by name → a scalar one, in place of the relative squared distance.
        samples: at most this many samples, spread over all.
        seed: of the samples drawn and varied.
        image: how to read pictures, where the data is a folder of them.
        resume: file for the state; training goes on from it where it exists, also with more steps than it was begun
            with, all other options alike.
        device: where to train, ``"cpu"`` or what torch offers.
        reporter: shows progress.

    Returns:
        The trained model, verified on the judging half of the samples held back; the one given where it was not made
        enough better there: by half a decibel, and by more from 15 dB on.

    Raises:
        ModelError: torch cannot run an operator of the model, or the teacher is another model, or quantized.
        DataError: fewer than two samples.
        OptionError: a number is out of range, torch or the device is missing, or the loss gives no finite number.
        OutputError: there is no place for the result or the state.
    """
    from onnxq.torch.devices import require_device
    from onnxq.torch.distill import Settings, distill
    from onnxq.torch.executor import Executor
    from onnxq.torch.resume import resumed, save, told_of_state
    from onnxq.torch.student import Student

    reporter = reporter or Silent()
    for name, value, least in (("steps", steps, 1), ("batch", batch, 1), ("seed", seed, 0)):
        if value is not None:
            check_int(name, plain(value), least)
    _check(minutes=minutes, lr=lr, scale_lr=scale_lr, bias_lr=bias_lr, vary=vary, features=features)
    require_device(device)
    most = steps if steps is not None else _DEFAULT_STEPS if minutes is None else _MOST_STEPS
    require_output(output)
    if resume is not None:
        require_file(resume, "Give the path of the file to keep the state in")
    given = quantized if isinstance(quantized, Quantized) else read(quantized, backend=backend)
    place = None if output is None else artifact_path(output, quantized, given.backend.name)
    _spare(place, given, model=quantized, data=data, **{"float model": teacher})
    _spare(place, given, model=given.model)
    prepared = Prepared(teacher, Options())
    _spare(place, given, teacher=prepared.model)
    reference = _reference(given, prepared)
    inner = _features(given, reference) if features else []
    student = Student(given, inner, device)
    master = Executor(reference, outputs=[*student.outputs, *inner], device=device)
    feeds = [dict(f) for f in open_data(data, inputs_of(reference), image=image, samples=samples)]
    fitting, choosing, judging = _parts(feeds)
    judge = _Judge(reference, judging)
    judge.require_same_shapes(given)
    given_sqnr = judge(given)  # before the work: the model given runs
    rate, checks = _rate(given) if lr is None else lr, max(min(20, most // 10), 1)
    settings = Settings(most, batch, rate, scale_lr, bias_lr, vary, features, checks=checks, seed=seed)
    start = resumed(student, resume, settings)
    began = time.monotonic()
    with (
        told_of_state(resume, start),
        reporter.phase("finetune", total=most if most < _MOST_STEPS else None, unit="steps") as advance,
    ):
        before, after, done = distill(
            student,
            master,
            fitting,
            choosing,
            settings,
            loss=loss,
            start=start,
            advance=advance,
            spent=lambda: 0.0 if minutes is None else (time.monotonic() - began) / max(60 * minutes, 1e-9),
            save=lambda step, error: save(student, resume, step, settings),
        )
    note = f"finetune: {plural(done, 'step')}, relative error on {plural(len(choosing), 'sample')} held back "
    note += f"{before:.3g} to {after:.3g}"
    trained = student.result()
    note += f"; in onnxruntime, on {plural(len(judging), 'other')}, "
    made = _better(given, trained, (given_sqnr, judge(trained)), note, any_gain=loss is not None and after < before)
    made = judge.verified(made, prepared)
    say(made.verification)
    return made if place is None else made.written(place)


def _spare(place: Path | None, given: Quantized, **files: Any) -> None:
    """Refuse to write over what is read."""
    if place is not None:
        spare(place, beside=given.backend.format_named(given.format).sidecars(place), **files)


def _reference(given: Quantized, prepared: Prepared) -> ir.Model:
    """The float model as the target wants it.

    Raises:
        ModelError: it is quantized, or another model than the one that was, or the one to train is not quantized.
    """
    if not given.qparams:
        raise ModelError("the model carries no quantizers", hint="Quantize it first, with 'onnxq quantize'")
    if carried := quantizing(prepared.model):
        raise ModelError(f"it is quantized itself: {counts(carried)}", where="the float model", hint=_THE_SAME)
    reference, _ = prepared.for_target(given.backend, Options())
    _require_same_interface(given.model, reference)
    return reference


def _parts(feeds: Sequence[Feeds]) -> tuple[list[Feeds], list[Feeds], list[Feeds]]:
    """Samples to learn from, to choose among states by, and to judge the result by.

    Raises:
        DataError: there are too few.
    """
    if len(feeds) < _LEAST_SAMPLES:
        raise DataError(f"{len(feeds)} sample is too few", where="data", hint="Give at least a dozen")
    out = {drawn(at, at + 4) for at in range(0, len(feeds) - 3, 4)} or {len(feeds) - 1}
    held = [f for k, f in enumerate(feeds) if k in out]
    choosing, judging = ([held[k] for k in part] or held for part in one_of_each_pair(len(held)))
    return [f for k, f in enumerate(feeds) if k not in out], choosing, judging


def _rate(given: Quantized) -> float:
    bits = min(qp.spec.bits for qp in given.qparams.values())
    return float(_RATE * 2.0 ** -max(bits - _FEW_BITS, 0))


def _check(**numbers: float | None) -> None:
    for name, value in numbers.items():
        low, high = (0, 1) if name == "vary" else (0, math.inf)
        endless = value == math.inf and name != "minutes"
        if value is not None and (endless or not low <= value <= high):
            bounds = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
            raise OptionError(f"{value!r} is not a number {bounds}", where=name)


def _require_same_interface(model: ir.Model, reference: ir.Model) -> None:
    pairs = {
        "inputs": ([i.name for i in inputs_of(model)], [i.name for i in inputs_of(reference)]),
        "outputs": ([v.name or "" for v in model.graph.outputs], [v.name or "" for v in reference.graph.outputs]),
    }
    for word, (names, wanted) in pairs.items():
        if names != wanted:
            raise ModelError(
                f"its {word} are {', '.join(wanted)}, those of the quantized model {', '.join(names)}",
                where="the float model",
                hint=_THE_SAME,
            )


def _features(given: Quantized, reference: ir.Model) -> list[str]:
    """Tensors that both graphs make alike and a quantizer stands behind, evenly spaced over the depth."""
    there = {v.name for node in reference.graph for v in node.outputs} - rescaled_apart(given.model, reference)
    sites = {s.tensor for s in given.plan.sites if s.role == "activation"}
    outputs = {v.name for v in given.model.graph.outputs}
    made = [v.name or "" for node in given.model.graph for v in node.outputs if v.dtype in (None, ir.DataType.FLOAT)]
    found = [name for name in made if name in sites and name in there and name not in outputs]
    count = min(_MOST_FEATURES, len(found))
    return [found[round(k * (len(found) - 1) / max(count - 1, 1))] for k in range(count)]


class _Judge:
    """dB of models in onnxruntime on samples that nothing was chosen by, against the float one."""

    def __init__(self, reference: ir.Model, held: Sequence[Feeds]) -> None:
        session = Session(reference, optimize=False)
        self.held, self.exact = held, [session.run(feeds) for feeds in held]

    def require_same_shapes(self, quantized: Quantized) -> None:
        """Of every output, for the first sample: two models may use the same names."""
        found = Session(quantized.rendered(), optimize=False).run(self.held[0])
        for name, wanted in self.exact[0].items():
            if found[name].shape != wanted.shape:
                raise ModelError(
                    f"its output {name!r} has shape {wanted.shape}, that of the quantized model {found[name].shape}",
                    where="the float model",
                    hint=_THE_SAME,
                )

    def verified(self, made: Quantized, prepared: Prepared) -> Quantized:
        """With its verification on these samples; ``prepared``: the float model."""
        pairs = enumerate(zip(self.held, self.exact, strict=True))
        kept = [KeptSample(k, dict(feeds), dict(outputs)) for k, (feeds, outputs) in pairs]
        result = made.rendered()
        forget_shapes(result)
        checked = final_check(prepared.model, result, kept, float_bytes=prepared.bytes, at_home=made.backend.at_home)
        return replace(made, verification=checked)

    def __call__(self, quantized: Quantized) -> float:
        session = Session(quantized.rendered(), optimize=False)
        return worst_sqnr(session.run, zip(self.held, self.exact, strict=True))


def _better(
    given: Quantized, trained: Quantized, levels: tuple[float, float], note: str, *, any_gain: bool
) -> Quantized:
    """The trained model where onnxruntime finds it better on the judging samples, else the one given."""
    before, after = levels
    least = max(_GAIN, (before - _ROUGH) / 10)
    if any_gain or after > before + least:
        note += f"{decibel(before)} to {decibels(after)}"
        return replace(trained, notes=(*given.notes, note), recipe=(*given.recipe, "finetune"))
    note += f"{decibel(before)} to {decibels(after)}, not {least:.1f} dB better: the model given is kept"
    return replace(given, notes=(*given.notes, note))
