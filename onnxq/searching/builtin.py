"""The measure without one of the user's: how well a model agrees with the float model on samples held back.

The model is taken for a classifier where every float output has two dimensions, samples and two or more classes: the
measure is the share of samples (rows) whose largest value stands at the same place, at the worst output. Any other
model is judged by its error: 1 - noise / signal at the worst float output, of what varies in it where its mean is large
and hides the error; a drop of 0.01 is an SQNR of 20 dB, 0.001 one of 30 dB. The float model has 1 either way.

A sample whose output has another shape than the float model's counts as wrong: all its rows, or an error of twice the
signal. Of a model that picks among what it has computed, as a detector does, the tensors that it picks from are judged
in place of what it picked, see :mod:`onnxq.graph.picking`.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.backend import Backend
from onnxq.calibration.data import open_data
from onnxq.calibration.roles import to_judge_by
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.errors import DataError
from onnxq.graph.files.load import load
from onnxq.measuring.chosen_rows import Rows, chosen_rows
from onnxq.measuring.decibels import noise_of
from onnxq.measuring.metrics import kept_signal
from onnxq.measuring.outputs import NONE, errors_of
from onnxq.measuring.picked import compared_by, with_outputs
from onnxq.notes.other_shapes import rows_depend
from onnxq.options import ImageOptions, Options
from onnxq.ort.inputs import InputInfo, inputs_of
from onnxq.ort.session import Session
from onnxq.prepare import Prepared, Source
from onnxq.searching.user_metric import Metric, Run

__all__ = ["agreement", "agreement_metric"]

Arrays = Mapping[str, NDArray[Any]]
_TOO_FEW = (
    "agreement is counted on the {} samples held back, of which one of another class is a drop of {:.2g}, more than "
    "the {:g} that may be lost. Give evaluation data of more samples, or a metric"
)
_log = logging.getLogger("onnxq")


def _is_classifier(outputs: Iterable[InputInfo]) -> bool:
    """Whether every float output has two dimensions, the second of two or more classes."""
    floats = [info for info in outputs if info.dtype.kind == "f"]
    return bool(floats) and all(
        info.shape is not None and len(info.shape) == 2 and isinstance(info.shape[1], int) and info.shape[1] >= 2
        for info in floats
    )


def agreement_metric(
    outputs: Iterable[InputInfo],
    pairs: Callable[[], Iterable[tuple[Arrays, Arrays]]],
    rows: Mapping[str, Rows] = NONE,
    shown: Sequence[str] = (),
) -> Metric:
    """The measure that fits a model.

    Args:
        outputs: what is judged: the model's outputs, or other tensors in place of some.
        pairs: gives feeds with what the float model gives of these, the same each time.
        rows: see :func:`onnxq.measuring.chosen_rows.chosen_rows`.
        shown: those of ``outputs`` that are tensors inside the model.
    """
    known = list(outputs)
    if not any(info.dtype.kind == "f" for info in known):
        raise DataError("no output of the model is float, so nothing can be compared", hint="Give a metric")
    if _is_classifier(known):
        about = "share of samples with the float model's top class (two-dimensional outputs are taken for classes)"
        name, function = "agreement", _top
    else:
        about = "of what varies in the worst output, against the float model (a drop of 0.01 is 20 dB, 0.001 is 30 dB)"
        name, function = "1 - noise/signal", partial(_power, rows=rows)
    digest = hashlib.sha256(name.encode()).hexdigest()
    said: set[str] = set()

    def measure(run: Run) -> float:
        value, reshaped = function(run.showing(shown) if shown else run, pairs())
        if reshaped and not said:
            said.update(reshaped)
            _log.warning("%s", rows_depend(reshaped))
        return value

    return Metric(name, digest, measure, about=about, baseline=1.0)


def agreement(
    model: Source,
    prepared: Prepared,
    target: Backend,
    statistics: Statistics,
    eval_data: Any,
    image: ImageOptions | None,
    options: Options,
    max_drop: float = 0.0,
) -> Metric:
    """Agreement with the float model on the evaluation data, or on the samples held back.

    It is warned of where these are so few that one of another class is more than may be lost.

    Args:
        model: the float model as it was given.
        prepared: the same, normalized.
        target: what is searched for.
        statistics: with the samples held back.
        eval_data: data to compare on, or None.
        image: how to read pictures, where these are a folder of them.
        options: providers and custom-op library.
        max_drop: what may be lost.

    Raises:
        DataError: there is nothing to compare on, or it can be read only once.
    """
    fitted = prepared.for_target(target, options).model
    by = compared_by(fitted, statistics)
    shown, judging = with_outputs(fitted, statistics, by) if by.tensors else (load(model), statistics)
    session = Session(shown, **options.session)
    outputs = [info for info in session.outputs if info.name not in by.outputs]
    rows = chosen_rows(prepared.model)
    if eval_data is None:
        held = to_judge_by(judging.kept)
        if not held:
            raise DataError("no sample could be held back to compare on", hint="Give a metric or evaluation data")
        _tell_of_few(outputs, held, max_drop)
        return agreement_metric(outputs, lambda: ((sample.feeds, sample.outputs) for sample in held), rows, by.tensors)
    feeds = open_data(eval_data, inputs_of(prepared.model, defaults=True), image=image)
    if not feeds.repeatable:
        raise DataError("the evaluation data can be read only once", hint="Give a list, a file or a function")
    names = [info.name for info in outputs]

    def pairs() -> Iterator[tuple[Arrays, Arrays]]:
        for feed in feeds:
            yield feed, session.run(feed, names)

    return agreement_metric(outputs, pairs, rows, by.tensors)


def _tell_of_few(outputs: Iterable[InputInfo], held: Sequence[KeptSample], max_drop: float) -> None:
    """Warns where the classes of so few rows are compared that no drop is as small as the one allowed."""
    known = list(outputs)
    if max_drop <= 0 or not _is_classifier(known):
        return
    name = next(info.name for info in known if info.dtype.kind == "f")
    rows = sum(len(sample.outputs[name]) for sample in held)
    if rows * max_drop < 1:
        _log.warning("%s", _TOO_FEW.format(rows, 1 / max(rows, 1), max_drop))


def _top(run: Run, pairs: Iterable[tuple[Arrays, Arrays]]) -> tuple[float, set[str]]:
    """The measure of a classifier, and the outputs that had another shape."""
    same: dict[str, list[bool]] = {}
    reshaped: set[str] = set()
    for feeds, expected in pairs:
        got = run(feeds)
        for name, values in expected.items():
            if values.dtype.kind != "f":
                continue
            rows = same.setdefault(name, [])
            if got[name].shape != values.shape:
                reshaped.add(name)
                rows += [False] * max(len(values), 1)
            else:
                rows += (np.argmax(_finite(values), axis=1) == np.argmax(_finite(got[name]), axis=1)).tolist()
    return min((float(np.mean(rows)) for rows in same.values() if rows), default=1.0), reshaped


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isnan(values), -np.inf, values)


def _power(run: Run, pairs: Iterable[tuple[Arrays, Arrays]], rows: Mapping[str, Rows]) -> tuple[float, set[str]]:
    """The measure of any other model, and the outputs that had another shape."""
    found = errors_of(run, pairs, rows)
    worst = min((min(errors.score, kept_signal(errors)) for errors in found.values()), default=math.inf)
    reshaped = {name for name, errors in found.items() if errors.reshaped}
    return 1.0 - noise_of(max(worst, -60.0)), reshaped
