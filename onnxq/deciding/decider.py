"""Plans a model and chooses its numbers, again and again, with more or less of it in float.

Who wants to know what it would be like with some layers in float asks a :class:`Decider`. It knows what the statistics
of the data rule out by themselves; what has to be measured is found by those who ask (:mod:`onnxq.deciding.decide`,
:mod:`onnxq.deciding.mend`), who tell it what to keep float from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple
from weakref import ref

import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithm_choice import Choice
from onnxq.algorithms.layerwise.round_kernels import round_kernels
from onnxq.backend import Backend, Kind
from onnxq.calibration.masks import find_masks
from onnxq.calibration.roles import few
from onnxq.calibration.sizes import sizes_on
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import plural
from onnxq.deciding.idle import idle_bodies
from onnxq.deciding.in_float import InFloat, nodes_touching
from onnxq.deciding.rescue import extent
from onnxq.deciding.stages import Stages, run_on
from onnxq.for_processor import for_processor
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import MADE
from onnxq.measuring.judging import telling
from onnxq.numbers import choose_numbers, unusable_constants, unusable_tensors
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.macs import multiply_accumulates
from onnxq.planning.planner import Planner
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.quantized import Quantized

__all__ = ["SEARCH", "Decider", "Made"]

SEARCH = "find what hurts"
"""Title of the progress of searches."""


class Made(NamedTuple):
    """A quantized model, and what the algorithms that made it say of it."""

    quantized: Quantized
    said: list[str]


class _Last(NamedTuple):
    """What a decider made last.

    Attributes:
        model: the float model.
        known: what it was made by besides: options, what stays float, nodes without usable numbers.
        quantized: it, if it is still in use.
        said: what the algorithms said of it.
    """

    model: ir.Model
    known: tuple[Options, InFloat, Mapping[str, str]]
    quantized: ref[Quantized]
    said: tuple[str, ...]


class Decider:
    """Makes quantized models of one float model, each with what is known by then to be better float.

    From the statistics alone it finds the nodes that read or write a tensor without usable values, or with masks among
    them: these stay float in all that it makes. :meth:`keep_float` adds others.

    Args:
        model: normalized float model; left unchanged.
        target: the backend.
        options: bits, ranges and so on.
        statistics: of this model.
        choices: algorithms; those of the numbers stage are run.
        keep_float: node name → reason, for nodes that stay float whatever the data shows.
        reporter: shows the progress of algorithms that take long.

    Attributes:
        notes: what was decided.
        warnings: what a user should know of the result.
        hints: what might be tried next.
        masks: where the model masks, see :mod:`onnxq.calibration.masks`.
        samples: the few kept samples that decide.
        sizes: tensor name → number of elements in a typical sample, as far as the data shows it.
        reporter: shows progress.
    """

    def __init__(
        self,
        model: ir.Model,
        target: Backend,
        options: Options,
        statistics: Statistics,
        choices: Sequence[Choice] = (),
        keep_float: Mapping[str, str] | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.reporter = reporter or Silent()
        self.model, self.options, self.statistics = model, options, statistics
        self.target = for_processor(target, options)
        self.choices = choices
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.hints: list[str] = []
        self.samples, self.sizes = few(statistics.kept), sizes_on(model, statistics)
        self.masks = find_masks(model, statistics.tensors)
        self._in_float = InFloat(dict(keep_float or {}))
        self._unusable: dict[str, str] = {}
        self._last: _Last | None = None
        self._planner: tuple[ir.Model, Options, Planner] | None = None
        self._idle = idle_bodies(model, statistics.tensors)
        outputs = (value for node in all_nodes(model) for value in node.outputs)
        self._made_tensors = {value.name for value in outputs if value.name and value.meta.get(MADE)}

    def quick(self) -> Made:
        """The quantized model with what is known to stay float, by the algorithms that are quick alone."""
        return self._attempt(self._in_float)

    def macs(self) -> int:
        """Multiply-accumulates of the model for a typical sample."""
        return sum(multiply_accumulates(node, self.sizes) for node in all_nodes(self.model))

    def extent(self) -> tuple[int, Sequence[KeptSample]]:
        """Measurements of a search, at most, and the samples for it, see :func:`onnxq.deciding.rescue.extent`."""
        most, samples = extent(self.macs(), self.statistics.samples, sum(1 for _ in all_nodes(self.model)))
        return most, telling(self.samples, samples, self.statistics)

    def costs(self, plan: Plan, *kinds: Kind) -> dict[str, float]:
        """Float cost of each quantized node, in the target's unit; where kinds are given, of nodes of these alone."""
        found = {}
        for node in self.model.graph.all_nodes():
            rule = row(self.target, node) if node.name and node.name in plan.quantized else None
            if rule is not None and (not kinds or rule.kind in kinds):
                found[node.name or ""] = rule.costs(node, self.sizes.get(node.outputs[0].name or "", 1))[0]
        return found

    def keep_float(self, reasons: Mapping[str, str], *, store: bool = False) -> None:
        """Keep nodes float from now on; ``store``: with their weights stored as integers."""
        self._in_float = self._in_float.plus(reasons, store=store)

    def at(self, model: ir.Model) -> Decider:
        """This decider for another form of its model, in which all names are the same."""
        other = copy(self)
        other.model = model
        return other

    def asking(self, options: Options) -> Decider:
        """This decider for other options of the same ranges, with nothing said yet."""
        other = copy(self)
        other.options, other._unusable = options, dict(self._unusable)
        other.notes, other.warnings, other.hints = [], [], []
        return other

    def become(self, other: Decider) -> None:
        """Go on as another one, see :meth:`asking`, with its notes and warnings in place of those here."""
        self.options, self._in_float, self._unusable = other.options, other._in_float, other._unusable
        self.notes, self.warnings, self.hints = other.notes, other.warnings, [*self.hints, *other.hints]

    def store_wide(self, model: ir.Model, reasons: Mapping[str, str]) -> None:
        """Store weights of float layers in 16 bits; ``model``: the float model at an opset that has such integers."""
        before, after = (form.opset_imports.get("", 0) for form in (self.model, model))
        if after != before:
            self.notes.append(f"opset: raised from {before} to {after}, which has integers of 16 bits for weights")
        self.model = model
        self._in_float = self._in_float.plus_wide(reasons)
        name, why = next(iter(reasons.items()))
        others = f" and of {plural(len(reasons) - 1, 'more float layer')}" if len(reasons) > 1 else ""
        self.notes.append(f"16 bits for the stored weights of {name!r}{others}: {why}")

    def without(self, kept: Iterable[str], *, store: bool = False, wide: bool = False) -> Quantized:
        """The model with more nodes float, by the algorithms that are quick.

        Args:
            kept: the nodes.
            store: with their weights stored.
            wide: in 16 bits.
        """
        more = dict.fromkeys(kept, "")
        in_float = self._in_float.plus(more, store=store)
        return self._attempt(in_float.plus_wide(more) if wide else in_float).quantized

    def in_integers(self, layers: Collection[str]) -> Decider:
        """This decider with some layers in integers wherever they do not stay float, and no other arithmetic.

        Where costs decide, a layer alone would stay float whose integers only pay beside those of its neighbours.
        """
        other = self.asking(replace(self.options, placement="compute"))
        others = other.costs(other.without(()).plan, Kind.COMPUTE).keys() - layers
        other.keep_float(dict.fromkeys(others, ""))
        return other

    def with_wide(self, nodes: Iterable[str]) -> Quantized:
        """The model with weights of more float layers stored in 16 bits, by the algorithms that are quick."""
        return self._attempt(self._in_float.plus_wide(nodes)).quantized

    def variant(
        self,
        choices: Sequence[Choice],
        options: Options,
        model: ir.Model,
        statistics: Statistics,
        keep_float: Mapping[str, str] | None = None,
        reporter: Reporter | None = None,
    ) -> Decider:
        """A decider that keeps float what this one does, for other algorithms, ranges, or an equal float model."""
        other = Decider(model, self.target, options, statistics, choices, reporter=reporter)
        other._in_float, other._unusable = self._in_float.plus(keep_float or {}), dict(self._unusable)
        return other

    def again(
        self, more: Mapping[str, str] | None = None, *, store: bool = False, stages: Stages | None = None
    ) -> Made:
        """The quantized model with what is known to stay float, by all algorithms.

        Args:
            more: node name → reason, for nodes to keep float this time.
            store: with their weights stored as integers.
            stages: what slow algorithms have left for deciders equal to this one, which is taken instead of running
                them again; what they leave here is added.
        """
        return self._attempt(self._in_float.plus(more or {}, store=store), final=True, stages=stages)

    def _attempt(self, in_float: InFloat, *, final: bool = False, stages: Stages | None = None) -> Made:
        """What was made last, while somebody holds it, where no more is known than then; else it is made anew."""
        slow = final and not all(choice.quick for choice in self.choices)
        known, last = (self.options, in_float), self._last
        if last is not None and not slow and last.model is self.model and last.known == (*known, self._unusable):
            quantized = last.quantized()
            if quantized is not None:
                return Made(quantized, list(last.said))
        made = self._anew(in_float, final=final, stages=stages)
        if not slow:
            self._last = _Last(self.model, (*known, dict(self._unusable)), ref(made.quantized), tuple(made.said))
        return made

    def _anew(self, in_float: InFloat, *, final: bool, stages: Stages | None) -> Made:
        """Plan, choose numbers, run the algorithms: those that take long only where this is ``final``.

        A plan may turn out to quantize tensors that have no usable numbers. The nodes that touch these are noted as
        unusable, for all that is made later too, and it is planned again.
        """
        model, options, statistics = self.model, self.options, self.statistics
        planner = self._planner_of(model, options)
        while True:
            plan = planner.plan(in_float.reasons, self._unusable, store=in_float.stored, wide=in_float.wide)
            bad = self.masks.to_avoid(mixes=self.target.mixes, everything=options.placement == "all")
            bad |= {**unusable_tensors(plan, statistics, self._made_tensors), **unusable_constants(model, plan)}
            bad |= {tensor: why for tensor, why in self._idle.items() if tensor in bad}
            more = nodes_touching(model, plan, bad)
            if not more:
                break
            self._unusable.update(more)
        numbers = choose_numbers(model, plan, statistics)
        said = self._adjusted(model, plan, numbers)
        choices = [choice for choice in self.choices if choice.stage == "numbers" and (final or choice.quick)]
        rounds = options.effort != "fast"
        if not (plan.quantized or plan.stored) or not (choices or rounds):
            return Made(self._result(model, plan, numbers), said)
        reporter = self.reporter if final else Silent()
        draft = Draft(model.clone(), model, plan, numbers, self.target, options, statistics, self.sizes, reporter)
        if rounds:
            round_kernels(draft.model, plan, numbers, statistics.measured.kernels.setdefault(model, {}))
        run_on(choices, draft, stages)
        said += [note for note in self._adjusted(draft.model, draft.plan, draft.numbers) if note not in said]
        return Made(self._result(draft.model, draft.plan, draft.numbers), [*draft.notes, *said])

    def _planner_of(self, model: ir.Model, options: Options) -> Planner:
        """What plans a form of the model, the one that planned last where that was for the same form and options."""
        known = self._planner
        if known is None or known[0] is not model or known[1] != options:
            known = self._planner = model, options, Planner(model, self.target, options, self.sizes)
        return known[2]

    def _adjusted(self, model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
        return self.target.adjust(model, plan, numbers) if self.target.adjust is not None else []

    def _result(self, model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> Quantized:
        recipe = (self.options.range, *(choice.text for choice in self.choices))
        return Quantized(model, plan, numbers, self.target, format=self.options.format or "", recipe=recipe)
