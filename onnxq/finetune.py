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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from onnxq.backend_choice import backend_named
from onnxq.calibration.chance import drawn, one_of_each_pair
from onnxq.calibration.data import open_data
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import plural
from onnxq.errors import DataError, OptionError, OutputError
from onnxq.finetuning.judge import Judge
from onnxq.finetuning.teacher import features_of, teacher_of
from onnxq.finetuning.with_numbers import with_numbers
from onnxq.locations import artifact_path, require_file, require_output, spare
from onnxq.measuring.chosen_rows import Rows
from onnxq.notes.aloud import say
from onnxq.options import ImageOptions, Options
from onnxq.options.one_value import check_int, plain
from onnxq.ort.inputs import inputs_of
from onnxq.prepare import Prepared, Source
from onnxq.quantized import Quantized
from onnxq.read import read
from onnxq.spec import FEW_BITS

if TYPE_CHECKING:
    from onnxq.torch.distill import Loss, Settings
    from onnxq.torch.executor import Executor
    from onnxq.torch.student import Student

__all__ = ["finetune"]

Feeds = Mapping[str, NDArray[Any]]

_LEAST_SAMPLES = 2
_DEFAULT_STEPS, _MOST_STEPS = 400, 1_000_000
"""Without a limit, and where time is the only one."""
_RATE = 0.01
"""Learning rate of weights of few bits, in units of their scale."""


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
    from onnxq.torch.distill import Settings, outputs_of
    from onnxq.torch.executor import Executor
    from onnxq.torch.student import Student

    _check_counts(steps=(steps, 1), batch=(batch, 1), seed=(seed, 0))
    _check_amounts(minutes=minutes, lr=lr, scale_lr=scale_lr, bias_lr=bias_lr, vary=vary, features=features)
    require_device(device)
    target = quantized.backend if isinstance(quantized, Quantized) else backend_named(backend)
    beside = target.format_named(quantized.format if isinstance(quantized, Quantized) else None).beside
    require_output(output, beside=beside)
    if resume is not None:
        require_file(resume, "Give the path of the file to keep the state in")
    given = quantized if isinstance(quantized, Quantized) else read(quantized, backend=backend)
    place = None if output is None else artifact_path(output, quantized, target.name, beside=beside)
    _require_apart(place, resume)
    _spare(place, given, model=quantized, data=data, **{"float model": teacher})
    _spare(place, given, model=given.model)
    prepared = Prepared(teacher, Options())
    _spare(place, given, teacher=prepared.model)
    reference = teacher_of(given, prepared)
    inner = features_of(given, reference) if features else []
    student = Student(given, inner, device)
    master = Executor(reference, outputs=[*student.outputs, *inner], device=device)
    opened = open_data(data, inputs_of(reference, defaults=True), image=image, samples=samples)
    feeds: list[Feeds] = [dict(f) for f in opened]
    places = {id(sample): opened.index_of(k) for k, sample in enumerate(feeds)}
    feeds, lost = with_numbers(
        feeds, lambda sample: outputs_of(master, sample, student.outputs, device), opened.index_of
    )
    fitting, choosing, judging = _parts(feeds)
    judge = Judge(given, reference, judging, [places[id(sample)] for sample in judging])
    length = _Length(steps, minutes)
    rate, checks = _rate(given) if lr is None else lr, max(min(20, length.most // 10), 1)
    settings = Settings(length.most, batch, rate, scale_lr, bias_lr, vary, features, checks=checks, seed=seed)
    parts = fitting, choosing
    rows = {} if loss is not None else judge.rows
    before, after, done = _trained(student, master, parts, settings, loss, rows, resume, length, reporter or Silent())
    note = f"finetune: {lost}{plural(done, 'step')}, relative error on {plural(len(choosing), 'sample')} held back "
    note += f"{before:.3g} to {after:.3g}; in onnxruntime, on {plural(len(judging), 'other')}, "
    made = judge.better_of(student.result(), note, any_gain=loss is not None and after < before)
    made = judge.verified(made, prepared)
    say(made.verification)
    return made if place is None else made.written(place)


@dataclass(frozen=True, slots=True)
class _Length:
    """How long to train: so many steps, so many minutes, or until the first of both is over."""

    steps: int | None
    minutes: float | None

    @property
    def known(self) -> int | None:
        """Steps to be done; None where time alone ends them."""
        return self.steps or (_DEFAULT_STEPS if self.minutes is None else None)

    @property
    def most(self) -> int:
        """Steps to be done, at most."""
        return self.known or _MOST_STEPS

    def clock(self) -> Callable[[], float]:
        """Tells the share of the time that has passed, from this call on."""
        if self.minutes is None:
            return lambda: 0.0
        began, seconds = time.monotonic(), max(60 * self.minutes, 1e-9)
        return lambda: (time.monotonic() - began) / seconds


def _trained(
    student: Student,
    teacher: Executor,
    parts: tuple[Sequence[Feeds], Sequence[Feeds]],
    settings: Settings,
    loss: Loss | None,
    rows: Mapping[str, Rows],
    resume: str | os.PathLike[str] | None,
    length: _Length,
    reporter: Reporter,
) -> tuple[float, float, int]:
    """Train the student, from where the file of the state left it; see :func:`onnxq.torch.distill.distill`."""
    from onnxq.torch.distill import distill
    from onnxq.torch.resume import resumed, save, told_of_state

    start = resumed(student, resume, settings)
    with told_of_state(resume, start), reporter.phase("finetune", total=length.known, unit="steps") as advance:
        return distill(
            student,
            teacher,
            *parts,
            settings,
            loss=loss,
            rows=rows,
            start=start,
            advance=advance,
            spent=length.clock(),
            save=lambda step, error: save(student, resume, step, settings),
        )


def _require_apart(place: Path | None, resume: str | os.PathLike[str] | None) -> None:
    """Refuse one file for the result and the state, which is read again by the next call."""
    if place is not None and resume is not None and place.resolve() == Path(resume).resolve():
        hint = "Give two names: 'onnxq finetune' goes on from the state another time"
        raise OutputError("this is the file of the result and that of the state", where=f"'{place}'", hint=hint)


def _spare(place: Path | None, given: Quantized, **files: Any) -> None:
    """Refuse to write over what is read."""
    if place is not None:
        spare(place, beside=given.backend.format_named(given.format).sidecars(place), **files)


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
    """Learning rate of weights: half as much for each bit more than few, see the argument ``lr``."""
    bits = min(qp.spec.bits for qp in given.qparams.values())
    return float(_RATE * 2.0 ** -max(bits - FEW_BITS, 0))


def _check_counts(**counts: tuple[int | None, int]) -> None:
    """Refuse what is below its least, by name."""
    for name, (value, least) in counts.items():
        if value is not None:
            check_int(name, plain(value), least)


def _check_amounts(**numbers: float | None) -> None:
    """Refuse what is out of range, by name."""
    for name, value in numbers.items():
        low, high = (0, 1) if name == "vary" else (0, math.inf)
        endless = value == math.inf and name != "minutes"
        if value is not None and (endless or not low <= value <= high):
            bounds = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
            raise OptionError(f"{value!r} is not a number {bounds}", where=name)
