"""One attempt: make the model, write it, judge it by the metric, time it."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.algorithm_choice import whole_model
from onnxq.calibration.feeds import shape_text
from onnxq.calibration.sizes import typical
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.deadline import Deadline, TimeIsUpError
from onnxq.effort import improves
from onnxq.errors import OnnxqError, OutputError
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.files.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.measuring.timing import clock_of, share_of_time
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.quantize import quantize
from onnxq.rewritten import Rewritten
from onnxq.searching.attempt import Attempt, Candidate, best
from onnxq.searching.equal_time import structure
from onnxq.searching.state import State, file_digest
from onnxq.searching.user_metric import Metric, Run
from onnxq.searching.work import quantized_share

__all__ = ["Trials", "report_of", "run_of"]

_REPORT = Path("onnxq", "report.json")
"""In the folder of an attempt, whose artifact may have a ``report.json`` of its own."""
_MODEL = "model.onnx"
_ROUNDING = 1e-9
"""Drops are differences of floats: 0.95 - 0.945 is more than 0.005."""
_log = logging.getLogger("onnxq")


@dataclass(frozen=True, eq=False)
class _Made:
    """What came of a candidate.

    Attributes:
        files: the artifact.
        size: of those that the target runs, in bytes.
        report: on it.
        rendered: what it computes, as ONNX.
        simulation: what to run in the artifact's place, where that is no ONNX model, or computes something else there.
        at_home: onnxruntime is what it is made for: it is run with graph optimizations, and timed.
        quantized: share of its work that is, see :mod:`onnxq.searching.work`; None where it is timed.
    """

    files: list[Path]
    size: int
    report: dict[str, Any]
    rendered: ir.Model
    simulation: ir.Model | None = None
    at_home: bool = True
    quantized: float | None = None


@dataclass(eq=False)
class Trials:
    """Makes and measures candidates; those that the state knows are not made again.

    Attributes:
        model: the float model.
        backend: name of the target.
        statistics: of the model.
        metric: what judges.
        baseline: the float model's metric.
        max_drop: how much less is allowed.
        state: where attempts are kept.
        name: of the artifact's main file.
        deadline: shows progress, and ends an attempt that there can be a result without: all but the first.
    """

    model: ModelSource
    backend: str
    statistics: Statistics
    metric: Metric
    baseline: float
    max_drop: float
    state: State
    name: str
    deadline: Deadline
    _float: Session | None = field(default=None, repr=False)

    def known(self, candidate: Candidate) -> Attempt | None:
        """The attempt at a candidate, if it was made."""
        return self.state.attempts.get((candidate.level, candidate.what))

    def make(self, candidate: Candidate) -> Attempt:
        """Make a model, measure it, and note it in the state.

        Raises:
            OnnxqError: the default cannot be made; of others it is noted that they failed.
            MetricError: the metric fails.
            TimeIsUpError: the model was not made in time.
        """
        start = time.perf_counter()
        number = len(self.state.attempts) + 1
        folder = self.state.place(number)
        attempt = Attempt(number, candidate.level, candidate.what)
        try:
            made = self._model_of(candidate, folder)
        except (OutputError, TimeIsUpError):
            raise  # a full disk is no property of the candidate, nor is the time
        except Exception as error:  # of another's plugin, too: one bad candidate must not end hours of work
            if candidate.level == "default":
                raise
            known = isinstance(error, OnnxqError)
            said = str(error) if known else f"{type(error).__name__}: {error}"
            _log.warning("%s failed: %s", attempt.name, said)
            attempt = replace(attempt, failed=said or type(error).__name__)
        else:
            attempt = self._measured(attempt, made, candidate.options, folder)
        attempt = replace(attempt, seconds=round(time.perf_counter() - start, 3))
        tried = [*self.state.attempts.values(), attempt]
        top = best(tried)
        self.state.add(attempt, [a for a in tried if a.meets or a is top])
        return attempt

    def _model_of(self, candidate: Candidate, folder: Path) -> _Made:
        options = replace(candidate.options, samples=None)  # that has been heeded
        path = folder / self.name
        choice = whole_model(options.algorithms)
        first = not self.state.attempts
        reporter = self.deadline.shown if first else self.deadline
        if choice is not None:
            feeds = [sample.feeds for sample in self.statistics.kept]
            done: Rewritten = choice.algorithm.rewrite(
                self.model, feeds, output=path, options=options, reporter=reporter, **choice.parameters
            )
            size = sum(path.stat().st_size for path in done.files)
            return _Made(list(done.files), size, done.report(), load(done.files[0]))
        quantized = quantize(
            self.model,
            backend=self.backend,
            statistics=self.statistics,
            options=options,
            max_minutes=self.deadline.minutes if first and improves(options) else None,
            reporter=reporter,
        )
        quantized = quantized.written(path)
        files, home = list(quantized.files), quantized.backend.at_home
        apart = quantized.is_simulated or files[0].suffix.lower() != ".onnx"
        return _Made(
            files,
            quantized.backend.format_named(options.format).size(files),
            replace(quantized, files=()).report(),
            quantized.rendered(),
            quantized.simulated() if apart else None,
            home,
            None if home else quantized_share(quantized.model, quantized.plan, self.statistics),
        )

    def _measured(self, attempt: Attempt, made: _Made, options: Options, folder: Path) -> Attempt:
        report = folder / _REPORT
        report.parent.mkdir()
        report.write_text(json.dumps(made.report), encoding="utf-8")
        attempt = replace(
            attempt,
            files=tuple(str(path.relative_to(folder.resolve())) for path in (p.resolve() for p in made.files)),
            bytes=made.size,
            digest=file_digest(made.files),
            structure=structure(made.rendered),
            quantized=made.quantized,
        )
        if made.simulation is None:
            return self._judged(attempt, made.files[0], options, at_home=made.at_home)
        forget_shapes(made.simulation)
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
            model = save(made.simulation, Path(name) / _MODEL)[0]
            return self._judged(attempt, model, options, at_home=made.at_home)

    def _judged(self, attempt: Attempt, model: Path, options: Options, *, at_home: bool) -> Attempt:
        """An attempt with what its model's metric and time are.

        Args:
            attempt: of which the rest is known.
            model: what computes as the attempt's artifact does.
            options: that it was made with.
            at_home: see :class:`_Made`.
        """
        earlier = list(self.state.attempts.values())
        twin = next((a for a in earlier if a.digest == attempt.digest and a.metric is not None), None)
        if twin is not None and twin.metric is not None:
            value = twin.metric
        else:
            run = run_of(model, options, optimize=at_home)
            value = self.metric(run, f"quantized model of attempt {attempt.number} ({attempt.name})")
        drop, took = self.baseline - value, None
        if at_home:
            alike = next((a for a in earlier if a.structure == attempt.structure and a.time is not None), None)
            took = alike.time if alike is not None else self._time(model, options)
        return replace(attempt, metric=value, drop=drop, time=took, meets=drop <= self.max_drop + _ROUNDING)

    @property
    def timed_on(self) -> str:
        """Inputs and shapes of the sample that speed is measured on, empty where it is not."""
        timed = any(attempt.time is not None for attempt in self.state.attempts.values())
        feeds = self._timed.feeds if self._timed is not None and timed else {}
        return ", ".join(f"{name} {shape_text(array.shape)}" for name, array in feeds.items())

    @property
    def _timed(self) -> KeptSample | None:
        kept = self.statistics.kept
        return typical(kept) if kept else None

    def _time(self, model: Path, options: Options) -> float | None:
        sample = self._timed
        if sample is None:
            return None
        if self._float is None:
            self._float = Session(load(self.model), threads=1, timed=True, **options.session)
        quantized = Session(model, threads=1, timed=True, **options.session)
        return share_of_time(self._float, quantized, sample.feeds, clock_of(options.providers))


def run_of(model: str | Path, options: Options, *, optimize: bool = True) -> Run:
    """A model's file as a metric takes it."""
    return Run(model, **options.session, optimize=optimize)


def report_of(folder: Path) -> dict[str, Any]:
    """The report on the artifact in the folder of an attempt."""
    place = folder / _REPORT
    place = place if place.is_file() else folder / _REPORT.name  # of an earlier version
    report: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return report
