"""The pipeline, from top to bottom: load, normalize, calibrate, plan, numbers, render, verify, write."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onnxq import plugins
from onnxq.algorithms.choice import chosen, run
from onnxq.algorithms.draft import FloatDraft
from onnxq.backend import Backend
from onnxq.best import improve
from onnxq.calibration.collect import collect
from onnxq.calibration.data import open_data
from onnxq.calibration.ranges import check_range
from onnxq.calibration.statistics import Statistics, model_digest
from onnxq.catalog import backends
from onnxq.decide import Decider
from onnxq.effort import algorithms_of, samples_to_keep, samples_to_verify, to_judge_by
from onnxq.errors import OptionError, OutputError, StatisticsError
from onnxq.graph.check import check
from onnxq.graph.constants import lift_constants
from onnxq.graph.foreign import infer_foreign
from onnxq.graph.load import load
from onnxq.graph.namer import unique_names
from onnxq.graph.normalize import normalize
from onnxq.graph.save import file_size
from onnxq.graph.shapes import forget_shapes, infer_shapes
from onnxq.graph.simplify import simplify
from onnxq.graph.upcast import upcast
from onnxq.options import ImageOptions, Options
from onnxq.plan import Plan
from onnxq.planner import make_plan
from onnxq.progress import Reporter, Silent
from onnxq.quantized import Quantized
from onnxq.render import fake_quantize
from onnxq.render.read import read as read_quantizers
from onnxq.rescue import POOR
from onnxq.session import inputs_of, require_library
from onnxq.spec import QuantSpec
from onnxq.verify import Verification, verify

__all__ = ["Prepared", "backend_named", "calibrate", "plan", "quantize", "read"]

Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model
BASE_OPSET = 14
"""Has per-channel QuantizeLinear (13) and HardSwish (14); statistics belong to the model at this opset or above."""
_WIDE_OPSET = 21
"""From here on QuantizeLinear and DequantizeLinear take 4- and 16-bit integers."""

_KEEP_BYTES = 256 << 20
"""Bytes of the samples held back in statistics."""

_KEEP = ((fake_quantize.DOMAIN, fake_quantize.NAME),)
"""Functions that are quantizers: they stay, and what they quantize is not quantized again."""


class Prepared:
    """A float model ready to be calibrated and planned.

    Attributes:
        model: normalized; not to be changed.
        notes: what the passes did.
        bytes: size of the model as it came.
    """

    def __init__(self, source: Source, options: Options) -> None:
        require_library(options.custom_op_library)
        model = load(source)
        self.bytes = file_size(model)
        self.notes: list[str] = []
        if options.simplify:
            self.notes += map(str, simplify(model))
        self.notes += map(str, upcast(model))
        base = BASE_OPSET if options.opset is None else min(BASE_OPSET, options.opset)
        self.notes += map(str, normalize(model, min_opset=base, keep=_KEEP))
        self.notes += map(str, infer_foreign(model, options.custom_op_library))
        check(model)
        self.model = model

    def at_opset(self, least: int, wanted: int | None) -> ir.Model:
        """The model at the opset that the result needs, its tensors named as they are."""
        return self.raised(self.model, least, wanted)

    def raised(self, model: ir.Model, least: int, wanted: int | None = None) -> ir.Model:
        """A model made from this one, at the opset that the result needs: itself where it is there already."""
        if wanted is None and model.opset_imports.get("", 0) >= least:
            return model
        model = model.clone()
        self.notes += map(str, normalize(model, min_opset=least, opset=wanted, keep=_KEEP))
        return model


def backend_named(name: str) -> Backend:
    """A target by its name.

    Raises:
        OptionError: there is none of that name.
    """
    found = plugins.find("onnxq.backends", name)
    backend = getattr(found, "BACKEND", found)
    if not isinstance(backend, Backend):
        raise OptionError(f"backend {name!r} offers no BACKEND of type onnxq.Backend")
    return backend


def plan(model: Source, *, backend: str = "onnxruntime", options: Options | None = None) -> Plan:
    """What will be quantized how, what is tied, what stays float and why. Needs no data.

    What data shows (a tensor never computed, a part that 8 bits destroy) can keep more nodes float later.
    """
    options = options or Options()
    target = backend_named(backend)
    prepared = Prepared(model, options)
    return make_plan(prepared.at_opset(_needed_opset(target, options), options.opset), target, options)


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
        model: path, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: see :func:`onnxq.calibration.data.open_data`.
        output: where to save the statistics.
        options: number of samples, providers, custom-op library, seed.
        image: how to read pictures, where the data is a folder of them.
        reporter: shows progress.
    """
    options = options or Options()
    _require_folder(output)
    statistics = _collect(Prepared(model, options), data, options, image, reporter or Silent())
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
        model: path, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: calibration data, see :func:`onnxq.calibration.data.open_data`; not needed with ``statistics``.
        backend: name of the target.
        output: where to write the artifact; nothing is written without it.
        statistics: what :func:`calibrate` gave, or its file.
        options: bits, ranges, exclusions and so on.
        image: how to read pictures, where the data is a folder of them.
        reporter: shows progress.

    Returns:
        The quantized model, verified.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    options, reporter = options or Options(), reporter or Silent()
    target = backend_named(backend)
    least = _needed_opset(target, options)
    choices = chosen(algorithms_of(options))
    if choices and all(choice.stage == "options" for choice in choices):  # they choose bits; the effort does the rest
        choices += chosen(algorithms_of(replace(options, algorithms=())))
    for method in (options.range, *(o.range for _, o in options.override if o.range is not None)):
        check_range(method)
    _require_folder(output)
    if data is None and statistics is None:
        raise OptionError("neither data nor statistics were given", hint="Give one of the two")
    if isinstance(statistics, (str, os.PathLike)):
        statistics = Statistics.load(statistics)
    prepared = Prepared(model, options)
    float_model = prepared.at_opset(least, options.opset)
    make_plan(float_model, target, options)  # a pattern that matches nothing is an error before any data is run
    if statistics is None:
        statistics = _collect(prepared, data, options, image, reporter)
    elif statistics.model_digest != model_digest(prepared.model):
        raise StatisticsError("they were made from another model", hint="Calibrate this model again")
    keep_float: dict[str, str] = {}
    stages = {choice.stage for choice in choices}
    if stages & {"float", "options"}:
        draft = FloatDraft(float_model.clone(), target, options, statistics, reporter)
        run(choices, draft)
        float_model, statistics, keep_float, options = draft.model, draft.statistics, draft.keep_float, draft.options
        prepared.notes += draft.notes
        float_model = prepared.raised(float_model, _needed_opset(target, options))
    decider = Decider(float_model, target, options, statistics, choices, metadata.version("onnxq"), keep_float)
    quantized = decider.decide()
    verification = _verified(quantized, prepared, statistics, options)
    worst = verification.worst
    searching = options.placement != "all" and min(options.weight_bits, options.act_bits) >= 8
    searching = searching and "options" not in stages  # bits under a budget, which float layers would break
    if searching and worst is not None and worst[1].sqnr < POOR:
        rescued = decider.rescue(quantized, reporter)
        if rescued is not None:
            better = _verified(rescued, prepared, statistics, options)
            if better.worst is not None and better.worst[1].sqnr > worst[1].sqnr:
                quantized, verification = rescued, better
    if options.effort == "best" and not options.algorithms and statistics.kept:
        quantized, tried = improve(quantized, decider, to_judge_by(statistics.kept), reporter)
        decider.notes += [note for note in tried if note not in decider.notes]
        verification = _verified(quantized, prepared, statistics, options)
    notes = (*prepared.notes, *decider.notes)
    told = statistics.warnings(set(quantized.plan.observed()))
    verification = replace(verification, warnings=(*told, *decider.warnings, *verification.warnings))
    quantized = replace(quantized, verification=verification, notes=notes)
    if output is not None:
        quantized.save(output)
    return quantized


def read(model: Source, *, backend: str = "onnxruntime") -> Quantized:
    """Read a model that carries quantizers (QDQ, or ``onnxq::FakeQuantize``) back into a :class:`Quantized`.

    Args:
        model: path, ``ModelProto`` or ``ir.Model``; left unchanged.
        backend: the target it will be rendered for.

    Returns:
        The float model, a site for every quantizer found, and their numbers; ``notes`` say what was left as it is.

    Raises:
        OnnxqError: the model is unreadable or invalid.
    """
    loaded = load(model)
    unique_names(loaded)
    lift_constants(loaded)
    infer_shapes(loaded)
    return read_quantizers(loaded, backend_named(backend))


def _verified(quantized: Quantized, prepared: Prepared, statistics: Statistics, options: Options) -> Verification:
    result = quantized.rendered()
    forget_shapes(result)
    return verify(
        prepared.model,
        result,
        samples_to_verify(statistics.kept),
        float_bytes=prepared.bytes,
        providers=options.providers,
        custom_op_library=options.custom_op_library,
    )


def _collect(
    prepared: Prepared, data: Any, options: Options, image: ImageOptions | None, reporter: Reporter
) -> Statistics:
    feeds = open_data(data, inputs_of(prepared.model), image=image, samples=options.samples)
    tensors = _observable(prepared.model, options)
    with reporter.phase("calibrate", total=feeds.length) as advance:
        return collect(
            prepared.model,
            tensors,
            feeds,
            samples=options.samples,
            keep=samples_to_keep(options),
            keep_bytes=_KEEP_BYTES,
            providers=options.providers,
            custom_op_library=options.custom_op_library,
            progress=advance,
        )


def _observable(model: ir.Model, options: Options) -> list[str]:
    """Every tensor that some installed target may quantize, so that one pass over the data serves them all.

    What the options exclude counts as well: a Relu that stays float leaves the tensor in front of it to be quantized.
    """
    wanted = [Options(placement="all"), Options(placement="all", exclude=options.exclude, override=options.override)]
    found: dict[str, None] = {}
    for target in backends():
        for asked in dict.fromkeys(wanted):
            sites = make_plan(model, target, asked).sites
            found.update(dict.fromkeys(site.source for site in sites if site.role == "activation"))
    return list(found)


def _needed_opset(target: Backend, options: Options) -> int:
    """4- and 16-bit integers exist in QuantizeLinear and DequantizeLinear from opset 21 on.

    Raises:
        OptionError: a lower opset is asked for.
    """
    widths = [options.weight_bits, options.act_bits]
    widths += [b for _, o in options.override for b in (o.weight_bits, o.act_bits) if b is not None]
    stored = {QuantSpec(bits).storage_bits for bits in widths}
    if options.format != "qdq" or stored == {8}:
        return target.min_opset
    if options.opset is not None and options.opset < _WIDE_OPSET:
        raise OptionError(
            f"opset {options.opset} has no {min(stored - {8})}-bit integers",
            where="opset",
            hint=f"Leave it out or ask for {_WIDE_OPSET}, or use the format fake-quantize",
        )
    return max(target.min_opset, _WIDE_OPSET)


def _require_folder(output: str | os.PathLike[str] | None) -> None:
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise OutputError("the folder does not exist", where=str(Path(output).parent), hint="Create it first")
