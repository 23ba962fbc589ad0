"""A model planned with what its data shows, as often as asked, with more or less of it float."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import replace

import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithm_choice import Choice
from onnxq.algorithms.layerwise.round_kernels import round_kernels
from onnxq.backend import Backend, Kind, OpRule
from onnxq.calibration.roles import few
from onnxq.calibration.sizes import sizes_on
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import plural
from onnxq.deciding.idle import idle_bodies
from onnxq.deciding.masks import find_masks
from onnxq.deciding.rescue import extent
from onnxq.deciding.stages import Stages, run_on
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import MADE
from onnxq.measuring.judging import telling
from onnxq.numbers import choose_numbers, unusable_constants, unusable_tensors
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.macs import multiply_accumulates
from onnxq.planning.planner import make_plan
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.quantized import Quantized

__all__ = ["SEARCH", "Decider", "Made"]

SEARCH = "find what hurts"
"""Title of the progress of searches."""
Made = tuple[Quantized, list[str]]
"""A quantized model, and what the algorithms say of it."""


class Decider:
    """Plans a model with what the data shows of it, as far as its statistics tell without running anything.

    Nodes stay float that read or write a tensor without usable values or with masks among them. What running it shows
    is found in :mod:`onnxq.deciding.decide` and :mod:`onnxq.deciding.mend`, which say here what to keep float.

    Args:
        model: normalized float model; left unchanged.
        target: the backend.
        options: bits, ranges and so on.
        statistics: of this model.
        choices: algorithms; those of the numbers stage are run.
        version: of onnxq, written into the result.
        keep_float: node name → reason, for nodes that stay float whatever the data shows.
        reporter: shows the progress of algorithms that take long.

    Attributes:
        notes: what was decided.
        warnings: what a user should know of the result.
        hints: what might be tried next.
        masks: where the model masks, see :mod:`onnxq.deciding.masks`.
        reporter: shows progress.
    """

    def __init__(
        self,
        model: ir.Model,
        target: Backend,
        options: Options,
        statistics: Statistics,
        choices: Sequence[Choice],
        version: str,
        keep_float: Mapping[str, str] | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.reporter = reporter or Silent()
        self.model, self.target, self.options, self.statistics = model, target, options, statistics
        self.choices, self.version = choices, version
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.hints: list[str] = []
        self._keep: dict[str, str] = dict(keep_float or {})
        self._store: set[str] = set()
        self._wide: set[str] = set()
        self._unusable: dict[str, str] = {}
        self._samples = few(statistics.kept)
        self._rounds = options.effort != "fast"
        outputs = (value for node in all_nodes(model) for value in node.outputs)
        self.masks = find_masks(model, statistics.tensors)
        self._idle = idle_bodies(model, statistics.tensors)
        self._made_tensors = {value.name for value in outputs if value.name and value.meta.get(MADE)}
        self._sizes = sizes_on(model, statistics)

    def quick(self) -> Made:
        """The quantized model with what is known to be kept float, by the algorithms that are quick."""
        return self._attempt(self._keep)

    def extent(self) -> tuple[int, Sequence[KeptSample]]:
        """Measurements of a search, at most, and the samples for it, see :func:`onnxq.deciding.rescue.extent`."""
        macs = sum(multiply_accumulates(node, self._sizes) for node in all_nodes(self.model))
        most, samples = extent(macs, self.statistics.samples)
        return most, telling(self._samples, samples, self.statistics)

    def layers(self, plan: Plan) -> dict[str, float]:
        """The multiply-accumulates that are quantized, with their costs."""
        return self._costs_of(plan, Kind.COMPUTE)

    def arithmetic(self, plan: Plan) -> dict[str, float]:
        """What else computes in integers, products and sums of two tensors among it, with costs."""
        return self._costs_of(plan, Kind.PRODUCT, Kind.ELEMENTWISE)

    def keep_float(self, reasons: Mapping[str, str], *, store: bool = False) -> None:
        """Keep nodes float from now on; ``store``: with their weights stored as integers."""
        self._keep.update(reasons)
        self._store.update(reasons if store else ())

    def at(self, model: ir.Model) -> Decider:
        """This decider with another form of its model, of the same names."""
        other = copy(self)
        other.model = model
        return other

    def store_wide(self, model: ir.Model, reasons: Mapping[str, str]) -> None:
        """Store weights of float layers in 16 bits; ``model``: the float model at an opset that has such integers."""
        before, after = (form.opset_imports.get("", 0) for form in (self.model, model))
        if after != before:
            self.notes.append(f"opset: raised from {before} to {after}, which has integers of 16 bits for weights")
        self.model = model
        self._wide.update(reasons)
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
        store_too, wide_too = more if store else (), more if wide else ()
        return self._attempt({**self._keep, **more}, store={*self._store, *store_too}, wide={*self._wide, *wide_too})[0]

    def in_integers(self, layers: Collection[str]) -> Decider:
        """This decider with some layers in integers wherever they do not stay float, and no other arithmetic.

        Where costs decide, a layer alone would stay float whose integers only pay beside those of its neighbours.
        """
        other = copy(self)
        other.options, other._unusable = replace(self.options, placement="compute"), dict(self._unusable)
        others = other.layers(other.without(()).plan).keys() - layers
        other._keep = {**self._keep, **dict.fromkeys(others, "")}
        return other

    def with_wide(self, nodes: Iterable[str]) -> Quantized:
        """The model with weights of more float layers stored in 16 bits, by the algorithms that are quick."""
        return self._attempt(self._keep, wide={*self._wide, *nodes})[0]

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
        other = Decider(model, self.target, options, statistics, choices, self.version, None, reporter)
        other._keep, other._unusable = {**self._keep, **(keep_float or {})}, dict(self._unusable)
        other._store, other._wide = set(self._store), set(self._wide)
        return other

    def again(
        self, more: Mapping[str, str] | None = None, *, store: bool = False, stages: Stages | None = None
    ) -> Made:
        """The quantized model with what is known to be kept float, and what the algorithms say.

        Args:
            more: node name → reason, for nodes to keep float this time.
            store: with their weights stored as integers.
            stages: what algorithms have left that take long, of equal deciders: it is not made again; added to.
        """
        more, store_too = more or {}, more if store and more else ()
        return self._attempt({**self._keep, **more}, final=True, store={*self._store, *store_too}, stages=stages)

    @property
    def samples(self) -> Sequence[KeptSample]:
        """The few samples that decide."""
        return self._samples

    @property
    def sizes(self) -> dict[str, int]:
        """Number of elements of tensors by name in a typical sample, as far as the data shows it."""
        return self._sizes

    def _attempt(
        self,
        keep: Mapping[str, str],
        *,
        final: bool = False,
        store: Collection[str] | None = None,
        wide: Collection[str] | None = None,
        stages: Stages | None = None,
    ) -> Made:
        """Plan and numbers, algorithms applied, with what these say; what the data rules out is noted as unusable.

        Algorithms that take long run on the final plan only.
        """
        model, options, statistics = self.model, self.options, self.statistics
        while True:
            plan = make_plan(
                model,
                self.target,
                options,
                keep_float=keep,
                unusable=self._unusable,
                sizes=self._sizes,
                store=self._store if store is None else store,
                wide=self._wide if wide is None else wide,
            )
            bad = self.masks.to_avoid(mixes=self.target.mixes, everything=options.placement == "all")
            bad |= {**unusable_tensors(plan, statistics, self._made_tensors), **unusable_constants(model, plan)}
            bad |= {tensor: why for tensor, why in self._idle.items() if tensor in bad}
            more = _nodes_touching(model, plan, bad)
            if not more:
                break
            self._unusable.update(more)
        numbers = choose_numbers(model, plan, statistics)
        said = self._adjusted(model, plan, numbers)
        choices = [choice for choice in self.choices if choice.stage == "numbers" and (final or choice.quick)]
        if not (plan.quantized or plan.stored) or not (choices or self._rounds):
            return self._made(model, plan, numbers), said
        reporter = self.reporter if final else Silent()
        draft = Draft(model.clone(), model, plan, numbers, self.target, options, statistics, self._sizes, reporter)
        if self._rounds:
            round_kernels(draft.model, plan, numbers, statistics.measured.kernels.setdefault(model, {}))
        run_on(choices, draft, stages)
        said += [note for note in self._adjusted(draft.model, draft.plan, draft.numbers) if note not in said]
        return self._made(draft.model, draft.plan, draft.numbers), [*draft.notes, *said]

    def _adjusted(self, model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
        return self.target.adjust(model, plan, numbers) if self.target.adjust is not None else []

    def _made(self, model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> Quantized:
        recipe = (self.options.range, *(choice.text for choice in self.choices))
        return Quantized(
            model, plan, numbers, self.target, format=self.options.format or "", version=self.version, recipe=recipe
        )

    def costs(self, plan: Plan) -> dict[str, float]:
        """Float cost of each quantized node, in the target's unit."""
        return {
            node.name or "": rule.costs(node)[0] * self._sizes.get(node.outputs[0].name or "", 1)
            for node, rule in self._quantized(plan)
        }

    def _costs_of(self, plan: Plan, *kinds: Kind) -> dict[str, float]:
        costs = self.costs(plan)
        return {node.name or "": costs[node.name or ""] for node, rule in self._quantized(plan) if rule.kind in kinds}

    def _quantized(self, plan: Plan) -> Iterator[tuple[ir.Node, OpRule]]:
        """Quantized nodes with their rows of the target's table."""
        for node in self.model.graph.all_nodes():
            if node.name and node.name in plan.quantized and (rule := row(self.target, node)) is not None:
                yield node, rule


def _nodes_touching(model: ir.Model, plan: Plan, bad: Mapping[str, str]) -> dict[str, str]:
    """Quantized nodes that read or write an unusable tensor, with the reason."""
    if not bad:
        return {}
    bad = {**bad, **{site.tensor: bad[site.source] for site in plan.sites if site.source in bad}}
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        if node.name in plan.quantized or node.name in plan.stored or node.name in plan.absorbed:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name in bad and node.name:
                    found.setdefault(plan.absorbed.get(node.name, node.name), bad[value.name])
    return found
