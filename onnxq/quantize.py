"""The pipeline, from top to bottom: load, normalize, calibrate, plan, numbers, render, verify, write."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.algorithms.choice import Choice, chosen, run
from onnxq.algorithms.draft import FloatDraft
from onnxq.best import improve
from onnxq.calibration.ranges import check_range
from onnxq.calibration.roles import samples_to_verify, to_judge_by
from onnxq.calibration.statistics import Statistics, model_digest
from onnxq.console.progress import Reporter, Silent
from onnxq.deciding.decide import Decider
from onnxq.deciding.what_hurts import mend
from onnxq.effort import algorithms_of
from onnxq.errors import OptionError, OutputError
from onnxq.given.fold_batchnorm import fold_quantized_batchnorm
from onnxq.graph.files.load_named import load_named
from onnxq.graph.shapes import forget_shapes, shapes_of_one, sizes_at
from onnxq.graph.values import filled_values
from onnxq.locations import artifact_path, is_folder, require_folder, spare
from onnxq.measuring.final_check import Verification, final_check
from onnxq.measuring.rewrite_cost import rewrite_cost
from onnxq.notes.aloud import say
from onnxq.notes.cautions import cautions
from onnxq.notes.hints import few_bits, hints
from onnxq.notes.unmet import unmet
from onnxq.observe import observe, require_one
from onnxq.options import ImageOptions, Options
from onnxq.plan import Plan
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared, Source, backend_named, needed_opset
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.reading.nodes import sort_nodes
from onnxq.render.reading.read import read as read_quantizers
from onnxq.several import for_each_target

__all__ = ["calibrate", "plan", "quantize", "quantize_all", "read"]


def plan(
    model: Source,
    *,
    backend: str = "onnxruntime",
    options: Options | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Plan:
    """What will be quantized how, what is tied, what stays float and why. Needs no data.

    What data shows (a tensor never computed, a part that 8 bits destroy) can keep more nodes float later. An algorithm
    that is a pipeline of its own plans for itself, and is refused here. What gains in integers depends on sizes: where
    inputs have free ones, give ``shapes`` of a sample by input name, or a free first dimension counts as 1.
    """
    options = Options.of(options)
    target = backend_named(backend)
    chosen(options.algorithms)
    target.require(options)
    fitted = Prepared(model, options).for_target(target, options)[0]
    return make_plan(fitted, target, options, sizes=sizes_at(fitted, {**shapes_of_one(fitted), **(shapes or {})}))


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
    """
    options = Options.of(options)
    if output is not None and Path(output).suffix.lower() == ".onnx":
        raise OutputError("statistics are no model", where=f"'{output}'", hint="Give a file that ends in .npz")
    require_folder(output)
    prepared = Prepared(model, options)
    if output is not None:
        spare(output, model=model, data=data)
        spare(output, model=prepared.model)
    statistics = observe(prepared, data, options, image, reporter or Silent())
    if output is not None:
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
    reporter: Reporter | None = None,
) -> Quantized:
    """Quantize a float model for a target.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: calibration data, see :func:`onnxq.calibration.data.open_data`; not needed with ``statistics``.
        backend: name of the target.
        output: where to write the artifact: a file, or a folder (a name without an ending, made where missing) for
            ``<model>_<backend>.onnx``. Sidecar files go beside the model. Nothing is written without it.
        statistics: what :func:`calibrate` gave, or its file.
        options: bits, ranges, exclusions and so on.
        image: how to read pictures, where the data is a folder of them.
        reporter: shows progress.

    Returns:
        The quantized model, verified; its warnings are logged, by the logger ``onnxq``.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    options, reporter = Options.of(options), reporter or Silent()
    job = _Job(backend, options)
    require_folder(output)
    paths = [] if output is None else [artifact_path(output, model, backend)]
    (result,) = _run(model, data, [job], statistics, options, image, reporter, paths)
    say(result.verification)
    return result.written(*paths) if paths else result


def quantize_all(
    model: Source,
    data: Any = None,
    *,
    backends: Sequence[str],
    output: str | os.PathLike[str] | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    options: Options | None = None,
    image: ImageOptions | None = None,
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
        reporter: shows progress.

    Returns:
        The quantized models by target, in the order given.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    options, reporter = Options.of(options), reporter or Silent()
    names = [backends] if isinstance(backends, str) else list(dict.fromkeys(backends))
    if not names:
        raise OptionError("no target was given", where="backends", hint="Name at least one, see onnxq.backends()")
    if output is not None and not is_folder(output, several=True):
        raise OptionError(f"'{output}' is no folder", where="output", hint="Several targets need one each")
    jobs = for_each_target(names, names, lambda name: _Job(name, options))
    require_folder(output, several=True)
    paths = [] if output is None else [artifact_path(output, model, name, several=True) for name in names]
    results = _run(model, data, jobs, statistics, options, image, reporter, paths)
    for name, result in zip(names, results, strict=True):
        say(result.verification, prefix=f"{name}: ")
    if paths:
        results = [result.written(path) for result, path in zip(results, paths, strict=True)]
    return dict(zip(names, results, strict=True))


class _Job:
    """One target of a run: the options as it understands them, checked before any work."""

    def __init__(self, backend: str, options: Options) -> None:
        self.target, self.options = backend_named(backend), options
        self.choices: list[Choice] = chosen(algorithms_of(options))
        if self.choices and all(choice.stage == "options" for choice in self.choices):
            effort = algorithms_of(replace(options, algorithms=()))  # these choose bits, the effort does the rest
            self.choices += chosen(effort)
        for method in (options.range, *(o.range for _, o in options.override if o.range is not None)):
            check_range(method, self.target.activation)
        self.target.require(options)

    def fitted(self, prepared: Prepared) -> tuple[ir.Model, list[str]]:
        """The model as the target wants it; a pattern that matches nothing is an error before any data is run."""
        model, notes = prepared.for_target(self.target, self.options)
        make_plan(model, self.target, self.options)
        return model, notes

    def run(
        self, prepared: Prepared, fitted: tuple[ir.Model, list[str]], statistics: Statistics, reporter: Reporter
    ) -> Quantized:
        target, options, choices = self.target, self.options, self.choices
        float_model, notes = fitted[0], [*prepared.notes, *fitted[1]]
        keep_float: dict[str, str] = {}
        told: list[str] = []
        stages = {choice.stage for choice in choices}
        if stages & {"float", "options"}:
            draft = FloatDraft(float_model.clone(), target, options, statistics, reporter)
            run(choices, draft)
            statistics, keep_float, options, told = draft.statistics, draft.keep_float, draft.options, draft.warnings
            float_model, more = prepared.raised(draft.model, needed_opset(target, options))
            notes += [*draft.notes, *more]
        version = metadata.version("onnxq")
        decider = Decider(float_model, target, options, statistics, choices, version, keep_float, reporter)
        quantized = decider.decide()
        verification = _verified(quantized, prepared, statistics, options)
        searching = options.placement != "all" and options.effort != "fast" and target.mixes
        searching = searching and min(target.bits(options)) >= 8
        searching = searching and "options" not in stages  # bits under a budget, which float layers would break
        if searching:

            def verify(other: Quantized) -> Verification:
                return _verified(other, prepared, statistics, options)

            quantized, verification = mend(decider, quantized, verification, verify, reporter)
        if options.effort == "best" and not options.algorithms and statistics.kept:
            quantized, tried = improve(quantized, decider, to_judge_by(statistics.kept), reporter)
            decider.notes += [note for note in tried if note not in decider.notes]
            verification = _verified(quantized, prepared, statistics, options)
        filled = {value.name for value in filled_values(quantized.model)}
        told += statistics.warnings(set(quantized.plan.observed()) - filled)
        told += [*prepared.warnings, *decider.warnings, *verification.warnings]
        if target.rewrite is not None:
            told += rewrite_cost(fitted[0], target.name, verification, statistics.kept, options)
        told += unmet(float_model, quantized.plan, target, options)
        form = target.format_named(options.format)
        packed = not form.simulated and form is not FAKE_QUANTIZE
        told += cautions(quantized.plan, verification, options, statistics, packed=packed)
        verification = replace(verification, warnings=tuple(told))
        unsaid = form.notes(quantized) if form.notes is not None else []
        advice = (*hints(float_model, quantized.plan, target, decider.sizes), *decider.hints)
        if options.effort != "best":  # which has tried it
            advice += few_bits(quantized.plan, quantized.qparams, quantized.recipe)
        return replace(quantized, verification=verification, notes=(*notes, *decider.notes, *unsaid), hints=advice)


def _run(
    model: Source,
    data: Any,
    jobs: Sequence[_Job],
    statistics: Statistics | str | os.PathLike[str] | None,
    options: Options,
    image: ImageOptions | None,
    reporter: Reporter,
    paths: Sequence[Path],
) -> list[Quantized]:
    require_one(data, statistics, options, image)
    spare(*paths, data=data, statistics=statistics)
    if isinstance(statistics, (str, os.PathLike)):
        statistics = Statistics.load(statistics)
    prepared = Prepared(model, options)
    spare(*paths, model=prepared.model)
    names = [job.target.name for job in jobs]
    fitted = for_each_target(names, jobs, lambda job: job.fitted(prepared))
    if statistics is None:
        statistics = observe(prepared, data, options, image, reporter, names)
    else:
        statistics.require_of(model_digest(prepared.model))
    return [job.run(prepared, fit, statistics, reporter) for job, fit in zip(jobs, fitted, strict=True)]


def read(model: Source, *, backend: str = "onnxruntime") -> Quantized:
    """Read a model that carries quantizers (QDQ, or ``onnxq::FakeQuantize``) back into a :class:`Quantized`.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        backend: the target it will be rendered for.

    Batch normalizations behind quantized weights are folded into their integers and scales, exactly, see
    :func:`onnxq.given.fold_batchnorm.fold_quantized_batchnorm`.

    Returns:
        The float model, a site for every quantizer found, and their numbers; ``notes`` say what was folded, and what
        was left as it is. Its format is the target's own, but ``"fake-quantize"`` where the model has such nodes.

    Raises:
        OnnxqError: the model is unreadable or invalid.
    """
    found = read_quantizers(load_named(model), backend_named(backend))  # its model is nobody else's
    plan, numbers, notes = fold_quantized_batchnorm(found.model, found.plan, found.qparams)
    plan = sort_nodes(found.model, found.backend, plan)  # anew: some are folded
    return replace(found, plan=plan, qparams=numbers, notes=(*found.notes, *map(str, notes)))


def _verified(quantized: Quantized, prepared: Prepared, statistics: Statistics, options: Options) -> Verification:
    result = quantized.simulated() if quantized.is_simulated else quantized.rendered()
    forget_shapes(result)
    return final_check(
        prepared.model,
        result,
        samples_to_verify(statistics.kept),
        float_bytes=prepared.bytes,
        providers=options.providers,
        custom_op_library=options.custom_op_library,
        at_home=quantized.backend.at_home,
    )
