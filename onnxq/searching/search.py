"""The search, from top to bottom: the float model's metric, statistics, and levels from cheap to dear."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxq.algorithm_choice import chosen
from onnxq.backend_choice import backend_named
from onnxq.calibration.data import open_data
from onnxq.calibration.ranges import check_range
from onnxq.calibration.statistics import Statistics, model_digest
from onnxq.console.deadline import Deadline, after
from onnxq.console.progress import Reporter, Silent
from onnxq.console.records import IN_REPORT
from onnxq.deciding.rescue import Blame
from onnxq.effort import algorithms_of, samples_to_keep
from onnxq.errors import DataError, OptionError, OutputError
from onnxq.file_system import whole_file
from onnxq.graph.files.load import load
from onnxq.graph.files.save import save
from onnxq.locations import artifact_path, made_folder, require_output, spare
from onnxq.notes.aloud import unsaid
from onnxq.observe import require_one
from onnxq.options import ImageOptions, Options
from onnxq.options.one_value import check_amount
from onnxq.ort.inputs import inputs_of
from onnxq.prepare import Prepared, Source
from onnxq.quantize import calibrate
from onnxq.searching import candidates, harmful_layers
from onnxq.searching.attempt import Attempt
from onnxq.searching.builtin import agreement
from onnxq.searching.claim import claiming
from onnxq.searching.levels import Hunt
from onnxq.searching.result import Search
from onnxq.searching.sources import digest_of_data, images_for, text_digest
from onnxq.searching.state import State, file_digest
from onnxq.searching.trials import Trials, report_of, run_of
from onnxq.searching.user_metric import Metric, Run, load_metric

__all__ = ["search"]

_log = logging.getLogger("onnxq")
Tell = Callable[[Attempt], None]


@claiming
def search(
    model: Source,
    data: Any = None,
    *,
    output: str | os.PathLike[str],
    max_drop: float,
    metric: str | Callable[[Run], object] | None = None,
    eval_data: Any = None,
    backend: str = "onnxruntime",
    statistics: Statistics | str | os.PathLike[str] | None = None,
    options: Options | None = None,
    image: ImageOptions | None = None,
    folder: str | os.PathLike[str] | None = None,
    max_minutes: float | None = None,
    reporter: Reporter | None = None,
    tell: Tell | None = None,
) -> Search:
    """Find the fastest model whose metric is at most ``max_drop`` below the float model's, and write it.

    Tried in this order, until a level holds a model that meets the target: what the options ask for, with ranges taken
    at each run in its place (``dynamic``) where that may be faster or more accurate; other range methods; quick
    algorithms on the best range; 16-bit activations and float for a few of the most harmful layers, whichever is
    faster; algorithms that train; then as many such layers as it takes. Speed is measured in onnxruntime, on one
    thread, in turn with the float model; times within 5 % count as equal, and then the earlier attempt wins.

    For another target than onnxruntime, what the artifact computes is simulated in onnxruntime, without graph
    optimizations, and judged so. Time there says nothing of the target: the model with most of its work quantized
    counts as the fastest (shares within 1 % as equal), then the smallest. What a target cannot hold, such as 16-bit
    activations, is not tried.

    Every attempt is noted in a folder, so that after an interruption the same call goes on where it was. The folder
    beside the output is removed when the search has ended; one that was named stays.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: calibration data, see :func:`onnxq.calibration.data.open_data`; not needed with ``statistics``.
        output: where to write the result: a file, or a folder for ``<model>_<backend>.onnx``.
        max_drop: in units of the metric, 0 or more.
        metric: ``"FILE.py:FUNCTION"`` or a function, see :mod:`onnxq.searching.user_metric`; None measures
            agreement with the float model, see :mod:`onnxq.searching.builtin`.
        eval_data: data for the agreement; None takes calibration samples held back, which algorithms do not learn from
            (range methods do).
        backend: name of the target.
        statistics: what :func:`onnxq.calibrate` gave, or its file.
        options: what is tried first. A range method or algorithms named there are not replaced by others.
        image: how to read pictures, where the data is a folder of them.
        folder: where the search keeps what it knows; None takes ``<output>.search``.
        max_minutes: of this call, after which no attempt is begun, and one that still makes its model ends without one.
            The first is always made, with effort ``best`` as far as the time goes.
        reporter: shows progress.
        tell: called with each attempt, those of an earlier run included.

    Raises:
        MetricError: the metric is missing, raises or gives no number; for the float model before any other work.
        OptionError: an option is wrong, or the folder is of another search, or one that is at work.
        OnnxqError: anything else that goes wrong; attempts made stay in the folder.
    """
    options, reporter = Options.of(options), reporter or Silent()
    options = replace(options, keep=samples_to_keep(replace(options, effort="best")))  # some attempts learn
    target, place = backend_named(backend), _checked(output, model, backend, max_drop, max_minutes, options)
    deadline = Deadline(after(max_minutes), reporter)
    image, eval_image = images_for(data, eval_data, image)
    require_one(data, statistics, options, image)
    beside = target.format_named(options.format).sidecars(place)
    others = {"evaluation data": eval_data, "metric": metric}
    spare(place, beside=beside, model=model, data=data, statistics=statistics, **others)
    judge = _own_metric(metric, eval_data)
    prepared = Prepared(model, options)
    spare(place, beside=beside, model=prepared.model)
    if isinstance(eval_data, (str, os.PathLike)):
        _require_fit(eval_data, prepared, eval_image)  # or what is wrong with it is found after hours of work
    digest = model_digest(prepared.model)
    given = _loaded(statistics, digest)
    ways = candidates.Ways.of(options, prepared, target)
    depends_on = {
        "model": digest,
        "data": digest_of_data(given if given is not None else data),
        "evaluation data": digest_of_data(eval_data),
        "metric": f"{judge.name} {judge.digest}" if judge else "agreement",
        "target": f"{backend}, max_drop {max_drop:g}",
        "options": text_digest(options, image or eval_image),
        "installed range methods or algorithms": text_digest(*ways.installed),
        "name of the output": place.name,
        **({} if target.at_home else {"way of judging": "simulated as written"}),
    }
    home = place.with_name(f"{place.name}.search") if folder is None else Path(folder)
    with made_folder(home), (state := State(home, depends_on)).beginning():
        source = _file_of(model, state)
        if judge is not None:
            _keep_baseline(state, judge, run_of(source, options))  # before hours of work
        known = _kept(state, lambda: given or calibrate(model, data, options=options, image=image, reporter=reporter))
    if judge is None:
        judge = agreement(model, prepared, target, known, eval_data, eval_image, options, max_drop)
        state.baseline = judge.baseline
    assert state.baseline is not None  # set above, or read
    trials = Trials(source, backend, known, judge, state.baseline, max_drop, state, place.name, deadline)
    blame = partial(_blame, state, partial(harmful_layers.measure, prepared, target, options, known, deadline))
    hunt = Hunt(trials, options, ways, blame, tell or _nobody, deadline)
    with unsaid():
        winner = hunt.run()
    files, report = ((), {}) if winner is None else _written(state, winner, place, prepared)
    if folder is None and not hunt.stopped:
        state.remove()
    return _result(hunt, winner, files, report)


def _require_fit(eval_data: str | os.PathLike[str], prepared: Prepared, image: ImageOptions | None) -> None:
    """Refuse evaluation data whose first sample does not fit the model.

    Raises:
        DataError: it does not, or there is none.
    """
    try:
        for _ in open_data(eval_data, inputs_of(prepared.model, defaults=True), image=image):
            return
    except DataError as error:
        where = ", ".join(filter(None, ("evaluation data", error.where)))
        raise DataError(error.what, where=where, hint=error.hint) from error


def _own_metric(metric: str | Callable[[Run], object] | None, eval_data: Any) -> Metric | None:
    """The user's metric, where there is one."""
    if metric is not None and eval_data is not None:
        raise OptionError("a metric brings its own data", where="eval_data", hint="Leave one of the two out")
    return None if metric is None else load_metric(metric)


def _keep_baseline(state: State, judge: Metric, run: Run) -> None:
    """Measure the float model, once in a search."""
    if state.baseline is None:
        state.baseline = judge(run, "float model")
        state.save()


def _result(hunt: Hunt, winner: Attempt | None, files: tuple[Path, ...], report: dict[str, Any]) -> Search:
    """What was found and written."""
    trials = hunt.trials
    return Search(
        metric=trials.metric.name,
        about=trials.metric.about,
        baseline=trials.baseline,
        max_drop=trials.max_drop,
        attempts=tuple(hunt.done),
        best=winner,
        stopped=hunt.stopped,
        resumed=trials.state.resumed,
        files=files,
        report=report,
        timed_on=trials.timed_on,
    )


def _nobody(attempt: Attempt) -> None:
    """Nobody listens."""


def _loaded(statistics: Statistics | str | os.PathLike[str] | None, digest: str) -> Statistics | None:
    """Statistics that were given, of the model with this digest.

    Raises:
        StatisticsError: they cannot be read, or are of another model.
    """
    if isinstance(statistics, (str, os.PathLike)):
        statistics = Statistics.load(statistics)
    if statistics is not None:
        statistics.require_of(digest)
    return statistics


def _kept(state: State, make: Callable[[], Statistics]) -> Statistics:
    """The statistics, made once in a search."""
    if state.statistics is None:
        make().save(state.statistics_file())
        state.keep_statistics()
    return Statistics.load(state.statistics_file())


def _blame(state: State, measure: Callable[[], list[Blame]]) -> list[Blame]:
    """What layers do to the outputs, measured once in a search."""
    if state.blame is None:
        state.blame = measure()
        state.save()
    return state.blame


def _checked(
    output: str | os.PathLike[str],
    model: Source,
    backend: str,
    max_drop: float,
    max_minutes: float | None,
    options: Options,
) -> Path:
    """The file to write, after everything that can be refused without work."""
    for name, value in (("max_drop", max_drop), ("max_minutes", max_minutes)):
        if value is not None:
            check_amount(name, value)
    check_range(options.range)
    chosen(algorithms_of(options))
    beside = backend_named(backend).format_named(options.format).beside
    require_output(output, beside=beside)
    return artifact_path(output, model, backend, beside=beside).absolute()


def _file_of(model: Source, state: State) -> str:
    """The float model as a file, as it came."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    path = state.folder / "float.onnx"
    if not path.exists():
        save(load(model), path)
    return str(path)


def _written(state: State, winner: Attempt, place: Path, prepared: Prepared) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """Copy the winner's files to where the result is to be; these, and its report, whose warnings are logged."""
    report = report_of(state.place_of(winner))
    for text in report["verification"]["warnings"]:
        _log.warning("%s", text, extra={IN_REPORT: True})
    places = [place.with_name(name) for name in winner.files]
    spare(*places, model=prepared.model)  # again: a result may have a data file
    return tuple(_copy(*pair) for pair in zip(state.files(winner), places, strict=True)), report


def _copy(source: Path, target: Path) -> Path:
    """Copy a file; what was there stays until all is written."""
    with made_folder(target), whole_file(target) as temporary:
        shutil.copyfile(source, temporary)
    if file_digest([source]) != file_digest([target]):
        raise OutputError("was not written as it should be", where=str(target))
    return target
