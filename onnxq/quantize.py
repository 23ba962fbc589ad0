"""The pipeline, from top to bottom: load, normalize, calibrate, plan, numbers, render, verify, write."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.algorithm_choice import require_a_plan
from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.calibration.statistics import Statistics, model_digest
from onnxq.console.deadline import end_of_share
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import listed
from onnxq.effort import end_of
from onnxq.errors import OnnxqError, OutputError
from onnxq.graph.shapes import inputs_of_unknown_size, shapes_of_one, sizes_at
from onnxq.job import Job
from onnxq.locations import (
    artifact_path,
    made_folder,
    require_file,
    require_files,
    require_output,
    require_several,
    spare,
)
from onnxq.notes.aloud import say
from onnxq.observe import observe, require_one, too_few_kept
from onnxq.options import ImageOptions, Options
from onnxq.plan import Plan
from onnxq.planning.given_shapes import check_shapes
from onnxq.planning.one_way import require_one_way
from onnxq.planning.placement import UNKNOWN_DIM
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared, Source
from onnxq.quantized import Quantized
from onnxq.several import for_each_target, for_those_that_take_it, names_of, require_all

__all__ = ["calibrate", "plan", "plan_fitted", "quantize", "quantize_all"]

_log = logging.getLogger("onnxq")


def plan(
    model: Source,
    *,
    backend: str = "onnxruntime",
    options: Options | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Plan:
    """What will be quantized how, what is tied, what stays float and why. Needs no data.

    What data shows (a tensor never computed, a part that 8 bits destroy) can keep more nodes float later. An algorithm
    that is a pipeline of its own plans for itself, and is refused here.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        backend: name of the target.
        options: bits, exclusions, placement and so on.
        shapes: of a sample, by input name. What gains in integers depends on sizes: without them a free first dimension
            counts as 1, and others as 16, which a warning says.

    Raises:
        OptionError: the target or an option is unknown, or the target has not what the options ask for; or a shape is
            none of an input.
        ModelError: the model is unreadable, invalid, or not for the target.
    """
    options = Options.of(options)
    target = backend_named(backend)
    require_a_plan(options.algorithms)
    target.require(options)
    prepared = Prepared(model, options)
    check_shapes(prepared.model, shapes or {})
    fitted = prepared.for_target(target, options).model
    free = inputs_of_unknown_size(fitted, shapes or {}) if target.by_cost else []
    if free:
        _log.warning(
            "free dimensions of %s are taken as %d: what gains in integers depends on them. 'onnxq check' with --data "
            "plans for those of the data, and onnxq.plan in Python for shapes that it is given",
            listed(list(map(repr, free)), 4),
            UNKNOWN_DIM,
        )
    return plan_fitted(fitted, target, options, shapes)


def plan_fitted(
    fitted: ir.Model, target: Backend, options: Options, shapes: Mapping[str, Sequence[int]] | None
) -> Plan:
    """:func:`plan` of a model as :meth:`onnxq.prepare.Prepared.for_target` gives it, for settings that it can have."""
    sizes = sizes_at(fitted, {**shapes_of_one(fitted), **(shapes or {})})
    made = make_plan(fitted, target, options, sizes=sizes)
    require_one_way(made, target, options)
    return made


def calibrate(
    model: Source,
    data: Any,
    *,
    output: str | os.PathLike[str] | None = None,
    options: Options | None = None,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
) -> Statistics:
    """Run the float model over the data once and keep what every target, bit width and range method needs.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: see :func:`onnxq.calibration.data.open_data`.
        output: where to save the statistics, a ``.npz`` file.
        options: number of samples, providers, custom-op library, seed.
        image: how to read pictures, where the data is a folder of them.
        reporter: shows progress.

    Returns:
        Statistics of every tensor that some installed target may quantize, and samples held back.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    options = Options.of(options)
    if output is not None:
        require_file(output, "Give the path of the .npz file to write")
        if Path(output).suffix.lower() != ".npz":
            raise OutputError("statistics are an .npz file", where=f"'{output}'", hint="Give a file that ends in .npz")
    prepared = Prepared(model, options)
    if output is not None:
        spare(output, model=model, data=data)
        spare(output, model=prepared.model)
    statistics = observe(prepared, data, options, image, reporter or Silent())
    if output is not None:
        with made_folder(Path(output)):
            statistics.save(output)
    return statistics


def quantize(
    model: Source,
    data: Any = None,
    *,
    backend: str = "onnxruntime",
    output: str | os.PathLike[str] | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    options: Options | None = None,
    image: ImageOptions | None = None,
    max_minutes: float | None = None,
    reporter: Reporter | None = None,
) -> Quantized:
    """Quantize a float model for a target.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: calibration data, see :func:`onnxq.calibration.data.open_data`; not needed with ``statistics``.
        backend: name of the target.
        output: where to write the artifact: a file ``NAME.onnx``, or a folder (a name without an ending) for
            ``<model>_<backend>.onnx``; folders are made where missing. Sidecar files go beside the model. Nothing is
            written without it.
        statistics: what :func:`calibrate` gave, or its file.
        options: bits, ranges, exclusions and so on.
        image: how to read pictures, where the data is a folder of them.
        max_minutes: of this call, after which effort ``best`` ends with the best so far; what is before that, and the
            last check, take their time.
        reporter: shows progress.

    Returns:
        The quantized model, verified; its warnings are logged, by the logger ``onnxq``.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    options = Options.of(options)
    until = end_of(max_minutes, options)
    job = Job(backend, options)
    beside = job.format.beside
    require_output(output, beside=beside)
    paths = {} if output is None else {backend: artifact_path(output, model, backend, beside=beside)}
    asked = _Request(model, data, statistics, options, image, reporter or Silent(), until)
    results, _ = asked.results({backend: job}, paths)
    say(results[backend].verification)
    return results[backend].written(*paths.values()) if paths else results[backend]


def quantize_all(
    model: Source,
    data: Any = None,
    *,
    backends: Sequence[str],
    output: str | os.PathLike[str] | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    options: Options | None = None,
    image: ImageOptions | None = None,
    max_minutes: float | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Quantized]:
    """Quantize a float model for several targets, calibrated once.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: see :func:`quantize`.
        backends: names of the targets, or a single one.
        output: a folder, made where missing, for files named ``<model>_<backend>``. Nothing is written without it.
        statistics: see :func:`quantize`.
        options: for all targets; a format that one of them has not is an error.
        image: see :func:`quantize`.
        max_minutes: see :func:`quantize`; targets share them evenly.
        reporter: shows progress.

    Returns:
        The quantized models by target, in the order given.

    Raises:
        TargetsError: some targets refuse the model, or their result fails its final check; the others are written.
        OutputError: among others, a file cannot be written; those of other targets may be there then.
        OnnxqError: anything else that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    options = Options.of(options)
    until = end_of(max_minutes, options)
    names = names_of(backends)
    require_several(output)
    jobs = for_each_target(names, lambda name: Job(name, options))
    require_output(output, several=True)
    paths = {} if output is None else {name: artifact_path(output, model, name, several=True) for name in names}
    asked = _Request(model, data, statistics, options, image, reporter or Silent(), until)
    results, refused = asked.results(jobs, paths)
    for name, result in results.items():
        say(result.verification, prefix=f"{name}: ")
    if paths:
        results = {name: result.written(paths[name]) for name, result in results.items()}
    require_all(results, refused, written=bool(paths))
    return results


@dataclass(frozen=True)
class _Request:
    """What :func:`quantize` and :func:`quantize_all` are given alike; ``until`` is when effort ``best`` ends."""

    model: Source
    data: Any
    statistics: Statistics | str | os.PathLike[str] | None
    options: Options
    image: ImageOptions | None
    reporter: Reporter
    until: float

    def results(
        self, jobs: Mapping[str, Job], paths: Mapping[str, Path]
    ) -> tuple[dict[str, Quantized], dict[str, OnnxqError]]:
        """The quantized model of each target, not yet written to its path, and what others refuse; no paths: it is not
        going to be.
        """
        require_one(self.data, self.statistics, self.options, self.image)
        beside = [file for name, path in paths.items() for file in jobs[name].format.sidecars(path)]
        require_files([*paths.values(), *beside])
        spare(*paths.values(), beside=beside, data=self.data, statistics=self.statistics)
        given = self._given_statistics()
        prepared = Prepared(self.model, self.options)
        spare(*paths.values(), beside=beside, model=prepared.model)
        fitted, refused = for_those_that_take_it(list(jobs), lambda name: jobs[name].fitted(prepared))
        names = list(fitted)
        if given is None:
            statistics = observe(prepared, self.data, self.options, self.image, self.reporter, names, passing=True)
        else:
            given.require_of(model_digest(prepared.model))
            statistics = given
        said = too_few_kept(statistics, self.options)

        def run(name: str) -> Quantized:
            share = end_of_share(self.until, len(names) - names.index(name))
            return _warned(jobs[name].run(prepared, fitted[name], statistics, self.reporter, share), said)

        return for_those_that_take_it(names, run, refused)

    def _given_statistics(self) -> Statistics | None:
        """Those given, read where they are a file."""
        if isinstance(self.statistics, (str, os.PathLike)):
            return Statistics.load(self.statistics)
        return self.statistics


def _warned(result: Quantized, said: Sequence[str]) -> Quantized:
    """A result whose warnings begin with what is said of the data."""
    checked = result.verification
    if not said or checked is None:
        return result
    return replace(result, verification=replace(checked, warnings=(*said, *checked.warnings)))
