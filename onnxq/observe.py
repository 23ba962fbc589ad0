"""One pass over the data for all targets: which tensors to observe, and their statistics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from onnxq.algorithm_choice import chosen
from onnxq.backend import Backend
from onnxq.calibration.collect import collect
from onnxq.calibration.data import open_data
from onnxq.calibration.statistics import Statistics, model_digest
from onnxq.catalog import backends
from onnxq.console.progress import Reporter, Silent
from onnxq.effort import algorithms_of, samples_to_keep
from onnxq.errors import ModelError, OnnxqError, OptionError
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.graph.snapshot import snapshot
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.notes.remarks import remarks
from onnxq.notes.unlike_given import unlike_given, unlike_unconverted
from onnxq.options import ImageOptions, Options
from onnxq.ort.inputs import inputs_of
from onnxq.planning.planner import activations_of
from onnxq.prepare import Prepared
from onnxq.process.memory import trim

__all__ = ["observable", "observe", "require_one", "too_few_kept"]

_KEEP_BYTES = 256 << 20
"""Bytes of the samples held back in statistics; four of large ones may take four times as many."""
_MANY = 1000
"""Nodes from which on planning for all targets takes long enough for its progress to be shown."""
_KEPT = "keep"
"""What statistics say of themselves: how many samples were to be held back."""


def observable(
    model: ir.Model,
    options: Options,
    asked: Collection[str] = (),
    base: Callable[[Backend], ir.Model] | None = None,
    advance: Callable[[int], None] = lambda targets: None,
) -> list[str]:
    """Every tensor that some installed target may quantize, so that one pass over the data serves them all.

    What the options exclude counts as well: a Relu that stays float leaves the tensor in front of it to be quantized.
    So does what only other targets than the one asked for quantize: what is observed decides what onnxruntime fuses,
    and with it the last digits; a target alone is to have the bytes that it has among others or from statistics.

    Args:
        model: as it will be calibrated.
        options: exclusions and overrides. A pattern need not name anything in the form that other targets want.
        asked: targets whose faults end the run; any other, of another package say, is left out, with a warning in the
            log.
        base: the model as :meth:`onnxq.prepare.Prepared.base` gives it for a target; ``model`` for all by default.
        advance: told how many targets are done.

    Raises:
        OptionError: a pattern names nothing in any.
    """
    changed = tuple((p, replace(o, weight_bits=None, act_bits=None)) for p, o in options.override)
    wanted = [Options(placement="all"), Options(placement="all", exclude=options.exclude, override=changed)]
    here = [v.name or "" for graph in all_graphs(model) for v in (*graph.inputs, *graph.initializers.values())]
    here += [v.name or "" for node in all_nodes(model) for v in node.outputs]
    found = set[str]()
    forms = _Forms(backends())
    refused: OptionError | None = None
    taken = False
    for done, target in enumerate(backends()):
        advance(done)
        try:
            form = forms.rewritten(model if base is None else base(target), target)
            if form is None:
                continue
            rewritten, own = form
            for question in dict.fromkeys(wanted):
                try:
                    found |= activations_of(rewritten, target, question, own)
                except OptionError as error:
                    refused = error
                    continue
                taken |= question == wanted[-1]
        except OnnxqError:
            raise
        except Exception as error:
            if target.name in asked:
                raise
            logging.getLogger("onnxq").warning(
                "backend %r cannot plan this model (%s: %s): what it alone would quantize is not observed. "
                "Ask for it alone to see where it fails",
                target.name,
                type(error).__name__,
                error,
            )
    advance(len(backends()))
    if refused is not None and not taken:
        raise refused
    return [name for name in here if name in found]


class _Forms:
    """Models in the form that targets want: copied once for all that change nothing, and raised once to a newer opset.

    Args:
        targets: those that will be asked for.
    """

    def __init__(self, targets: Collection[Backend]) -> None:
        self._opsets = sorted({target.min_opset for target in targets}, reverse=True)
        self._raised: dict[tuple[int, int], tuple[ir.Model, ir.Model]] = {}
        self._copies: dict[int, tuple[ir.Model, list[Any]]] = {}
        self._groups: dict[int, tuple[ir.Model, list[Group]]] = {}

    def rewritten(self, model: ir.Model, target: Backend) -> tuple[ir.Model, list[Group]] | None:
        """A model in the form that a target wants to plan for, and its groups; none where the target cannot hold it."""
        if target.rewrite is None:
            return self._grouped(model)
        found = self._at_opset(model, target)
        if id(found) not in self._copies:
            copy = found.clone()
            self._copies[id(found)] = copy, snapshot(copy)
        copy, before = self._copies.pop(id(found))
        try:
            target.rewrite(copy)
        except ModelError:
            return None
        if snapshot(copy) != before:
            return copy, find_groups(copy)
        self._copies[id(found)] = copy, before
        return self._grouped(found)

    def _grouped(self, model: ir.Model) -> tuple[ir.Model, list[Group]]:
        """A model that several targets plan for as it is, and its groups."""
        if id(model) not in self._groups:
            self._groups[id(model)] = model, find_groups(model)
        return self._groups[id(model)]

    def _at_opset(self, model: ir.Model, target: Backend) -> ir.Model:
        """A model at the newest opset that some target needs and this one reads, or itself if it needs none."""
        if model.opset_imports.get("", 0) >= target.min_opset:
            return model
        opset = next(opset for opset in self._opsets if opset <= target.max_opset)
        if (id(model), opset) not in self._raised:
            self._raised[id(model), opset] = model, Prepared.raised(model, opset)[0]
        return self._raised[id(model), opset][1]


def require_one(
    data: Any, statistics: object, options: Options | None = None, image: ImageOptions | None = None
) -> None:
    """Refuse what leaves open what to calibrate with, and what is said of data where there is none.

    Args:
        data: samples, or None.
        statistics: what replaces them, or None.
        options: what the user asked for.
        image: how pictures are read.

    Raises:
        OptionError: neither data nor statistics were given, or both, or what is none; statistics, and how to read data.
    """
    if data is None and statistics is None:
        raise OptionError("neither data nor statistics were given", hint="Give one of the two")
    if data is not None and statistics is not None:
        raise OptionError("both data and statistics were given", hint="Give one: statistics replace the data")
    if statistics is not None:
        if not isinstance(statistics, (Statistics, str, os.PathLike)):
            raise OptionError(
                f"an object of type {type(statistics).__name__} is not statistics",
                where="statistics",
                hint="Give what onnxq.calibrate gave, or the path of its file",
            )
        if options is not None and options.samples is not None:
            what = "has no effect on statistics, whose samples were taken when they were made"
            raise OptionError(what, where="samples", hint="Leave it out, or calibrate with it")
        ImageOptions.refuse(image, "statistics, which replace the data")


def too_few_kept(statistics: Statistics, options: Options) -> list[str]:
    """What to say of statistics that hold back fewer samples than data would give to algorithms that learn from them.

    Nothing where there are no more samples, or no memory for more.
    """
    asked, wanted = int(statistics.meta.get(_KEPT, len(statistics.kept))), samples_to_keep(options)
    twice = 2 * sum(sample.nbytes for sample in statistics.kept)  # the next number of samples that might be held back
    if asked >= min(wanted, statistics.samples) or twice > _KEEP_BYTES:
        return []
    if options.effort != "best" and all(choice.quick for choice in chosen(algorithms_of(options))):
        return []  # the few samples that these look at are the same ones
    learner = ", ".join(algorithms_of(options)) if options.algorithms else "effort best"
    return [
        f"the statistics hold back {len(statistics.kept)} samples, and {learner} would have up to {wanted} of data: "
        f"'onnxq calibrate --keep {wanted}' holds back as many"
    ]


def observe(
    prepared: Prepared,
    data: Any,
    options: Options,
    image: ImageOptions | None,
    reporter: Reporter,
    asked: Collection[str] = (),
    *,
    passing: bool = False,
) -> Statistics:
    """Run the float model over the data once.

    Args:
        prepared: the model.
        data: see :func:`onnxq.calibration.data.open_data`.
        options: number of samples, providers, custom-op library.
        image: how to read pictures.
        reporter: shows progress.
        asked: the targets that the statistics are for, see :func:`observable`; none: for any.
        passing: the statistics are used with this model alone, and then dropped: they do not say of which they are.
    """
    feeds = open_data(data, inputs_of(prepared.model, defaults=True), image=image, samples=options.samples)
    shown = reporter if prepared.model.graph.num_nodes() >= _MANY else Silent()
    with shown.phase("find tensors to observe", total=len(backends()), unit="targets") as advance:
        tensors = observable(prepared.calibrated, options, asked, prepared.base, advance)
    with reporter.phase("calibrate", total=feeds.length) as advance:
        made = collect(
            prepared.calibrated,
            tensors,
            feeds,
            expected=feeds.length,
            keep=samples_to_keep(options),
            keep_bytes=_KEEP_BYTES,
            progress=advance,
            digest="" if passing else model_digest(prepared.model),  # of the model that the user has
            place=feeds.index_of,
            **options.session,
        )
    trim()  # its sessions are gone: what comes next opens others
    made.meta[_KEPT] = str(samples_to_keep(options))
    made.remarks = remarks(prepared.model, prepared.remembered, made, options)
    if prepared.calibrated is not prepared.model:
        made.remarks += unlike_given(prepared.model, made.kept, options)
    if prepared.converted is not None and not prepared.random:
        made.remarks += unlike_unconverted(prepared.converted, made.kept, options)
    return made
