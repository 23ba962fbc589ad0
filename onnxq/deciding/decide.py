"""What the data decides: the plan that it allows, biases corrected, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from itertools import count
from typing import TypedDict

import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithm_choice import Choice, run
from onnxq.backend import Backend, Kind
from onnxq.calibration.roles import few, spread
from onnxq.calibration.sizes import sizes_on
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import plural
from onnxq.deciding.amplifiers import noise_amplifiers
from onnxq.deciding.branches import LostBranch, lost_branches, remedy, to_keep_float, with_wide_concats
from onnxq.deciding.coarse import coarse_weights
from onnxq.deciding.idle import idle_bodies
from onnxq.deciding.least_float import least_float
from onnxq.deciding.masks import find_masks
from onnxq.deciding.rescue import extent
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.variants import Variants
from onnxq.numbers import MADE, choose_numbers, unusable_constants, unusable_tensors
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.macs import multiply_accumulates
from onnxq.planning.planner import make_plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized

__all__ = ["SEARCH", "Decider", "Runtime"]

SEARCH = "find what hurts"
"""Title of the progress of searches."""
_ROUNDS = 3
"""How often noise is looked for again after nodes were kept float."""
_LARGEST_SHARE = 0.5
"""Largest share of the quantized nodes' cost that may be kept float because of amplified noise."""


Made = tuple[Quantized, list[str]]
"""A quantized model, and what the algorithms say of it."""


class Runtime(TypedDict):
    """Options of :class:`onnxq.ort.session.Session`."""

    providers: tuple[str, ...]
    custom_op_library: str | None


class Decider:
    """Plans a model with what the data shows of it.

    Nodes stay float that read or write a tensor without usable values or with masks among them, and nodes whose noise
    float arithmetic behind them amplifies; where that is most of the model, as few of them as leave a signal.

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
        self._reporter = reporter or Silent()
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
        outputs = (value for node in all_nodes(model) for value in node.outputs)
        self._masks = find_masks(model, statistics.tensors)
        self._idle = idle_bodies(model, statistics.tensors)
        self._made_tensors = {value.name for value in outputs if value.name and value.meta.get(MADE)}
        self._sizes = sizes_on(model, statistics.kept)

    def decide(self) -> Quantized:
        """The quantized model, not yet verified: made anew as often as the data shows what is better float."""
        made = self._attempt(self._keep)
        made = self._without_coarse_weights(made)
        made = self._without_lost_branches(made)
        made = self._without_amplifiers(made)
        if not all(choice.quick for choice in self.choices):
            made = self._attempt(self._keep, final=True)
        quantized, said = made
        self.notes += said
        self.warnings += self._masks.ignored(quantized.plan)
        return quantized

    def _without_coarse_weights(self, made: Made) -> Made:
        """Layers whose weights the grid is too coarse for stay float."""
        quantized = made[0]
        coarse = coarse_weights(self.model, quantized.plan, quantized.qparams, self._samples)
        if not coarse or self.options.placement == "all":
            return made
        self._keep.update(coarse)
        return self._attempt(self._keep)

    def _without_lost_branches(self, made: Made) -> Made:
        """Branches that a Concat's one scale loses: float, or 16 bits for the Concat; of those left it is warned."""
        quantized = made[0]
        lost = self._lost(quantized)
        keep = to_keep_float(self.model, quantized.plan, self.target, lost)
        if keep and self.options.placement != "all":
            self._keep.update(keep)
            made = self._attempt(self._keep)
            lost = self._lost(made[0])
        elif lost and (wider := with_wide_concats(self.model, self.target, self.options, lost)) is not None:
            before, self.options = self.options, wider
            wide = self._attempt(self._keep)
            left = self._lost(wide[0])
            if len(left) < len(lost):
                made = wide
                kept = [branch for branch in lost if branch.concat not in {other.concat for other in left}]
                self.notes += [f"16 bits for Concat {branch.concat!r}: {branch}" for branch in kept]
                lost = left
            else:
                self.options = before
        self.warnings += [f"{branch}: {remedy(self.model, made[0].plan, self.target, branch)}" for branch in lost]
        return made

    def _lost(self, quantized: Quantized) -> list[LostBranch]:
        return lost_branches(self.model, quantized.plan, quantized.qparams, self.statistics)

    def _without_amplifiers(self, made: Made) -> Made:
        """What comes before float arithmetic that amplifies its noise stays float, unless that is most of the work."""
        forced = self.options.placement == "all"
        for _ in range(_ROUNDS):
            quantized = made[0]
            if not self.target.mixes or not quantized.plan.quantized:
                break
            noisy = noise_amplifiers(
                self.model,
                quantized.rendered,
                quantized.plan,
                self._samples,
                sizes=self._sizes,
                broken=forced,
                optimize=self.target.at_home,
                **self.runtime,
            )
            if not noisy:
                break
            costs = self.costs(quantized.plan)
            share = sum(costs[n] for n in noisy) / max(sum(costs.values()), 1e-12)
            if share > _LARGEST_SHARE and not forced:
                part = self._least_float(quantized, list(noisy), costs)
                if not part:
                    why = next(iter(noisy.values()))
                    self.notes.append(f"{why}; {share:.0%} of the quantized work comes before it: left as it is")
                    break
                noisy = {name: noisy[name] for name in part}
            self._keep.update(noisy)
            made = self._attempt(self._keep)
        return made

    def _least_float(self, quantized: Quantized, nodes: Sequence[str], costs: Mapping[str, float]) -> list[str]:
        """The part of some nodes to keep float for a signal at the outputs, see :mod:`onnxq.deciding.least_float`."""
        if not self._samples:
            return []
        (most, some), fuse = self.extent(), not quantized.is_simulated
        variants = Variants(quantized.simulated(), some, fuse_quantizers=fuse, **self.runtime)
        named = set(nodes)
        in_order = [node.name for node in all_nodes(self.model) if node.name in named]
        with self._reporter.phase(SEARCH, unit="trials") as advance:
            done = count(1)

            def measure(kept: Iterable[str]) -> float:
                made = self._attempt({**self._keep, **dict.fromkeys(kept, "")})[0]
                found = variants.kept_signal(made.simulated()) if self.layers(made.plan) else -math.inf
                advance(next(done))
                return found

            return least_float(in_order, self.layers(quantized.plan), costs, measure, most)

    def extent(self) -> tuple[int, Sequence[KeptSample]]:
        """Measurements of a search, at most, and the samples for it, see :func:`onnxq.deciding.rescue.extent`."""
        macs = sum(multiply_accumulates(node, self._sizes) for node in all_nodes(self.model))
        most, samples = extent(macs, self.statistics.samples)
        return most, spread(self._samples, samples)

    def layers(self, plan: Plan) -> dict[str, float]:
        """The multiply-accumulates that are quantized, with their costs."""
        rules = self.target.rules
        costs = self.costs(plan)
        return {name: cost for name, cost in costs.items() if rules[plan.quantized[name]].kind is Kind.COMPUTE}

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
        self.model = model
        self._wide.update(reasons)
        name, why = next(iter(reasons.items()))
        others = f" and of {plural(len(reasons) - 1, 'more float layer')}" if len(reasons) > 1 else ""
        self.notes.append(f"16 bits for the stored weights of {name!r}{others}: {why}")

    def without(self, kept: Iterable[str]) -> Quantized:
        """The model with more nodes float, by the algorithms that are quick."""
        return self._attempt({**self._keep, **dict.fromkeys(kept, "")})[0]

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
    ) -> Decider:
        """A decider that keeps float what this one does, for other algorithms, ranges, or an equal float model."""
        other = Decider(model, self.target, options, statistics, choices, self.version)
        other._keep, other._unusable = {**self._keep, **(keep_float or {})}, dict(self._unusable)
        other._store, other._wide = set(self._store), set(self._wide)
        return other

    def again(self, more: Mapping[str, str] | None = None, *, store: bool = False) -> Made:
        """The quantized model with what is known to be kept float, and what the algorithms say.

        Args:
            more: node name → reason, for nodes to keep float this time.
            store: with their weights stored as integers.
        """
        more = more or {}
        return self._attempt({**self._keep, **more}, final=True, store={*self._store, *(more if store else ())})

    @property
    def samples(self) -> Sequence[KeptSample]:
        """The few samples that decide."""
        return self._samples

    @property
    def sizes(self) -> dict[str, int]:
        """Number of elements of tensors by name in a typical sample, as far as the data shows it."""
        return self._sizes

    @property
    def runtime(self) -> Runtime:
        """How onnxruntime is opened."""
        return {"providers": self.options.providers, "custom_op_library": self.options.custom_op_library}

    def _attempt(
        self,
        keep: Mapping[str, str],
        *,
        final: bool = False,
        store: Collection[str] | None = None,
        wide: Collection[str] | None = None,
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
            bad = self._masks.to_avoid(mixes=self.target.mixes, everything=options.placement == "all")
            bad |= {**unusable_tensors(plan, statistics, self._made_tensors), **unusable_constants(model, plan)}
            bad |= {tensor: why for tensor, why in self._idle.items() if tensor in bad}
            more = _nodes_touching(model, plan, bad)
            if not more:
                break
            self._unusable.update(more)
        numbers = choose_numbers(model, plan, statistics)
        said = self._adjusted(model, plan, numbers)
        choices = [choice for choice in self.choices if choice.stage == "numbers" and (final or choice.quick)]
        if not (plan.quantized or plan.stored) or not choices:
            return self._made(model, plan, numbers), said
        reporter = self._reporter if final else Silent()
        draft = Draft(model.clone(), model, plan, numbers, self.target, options, statistics, self._sizes, reporter)
        run(choices, draft)
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
        costs: dict[str, float] = {}
        for node in self.model.graph.all_nodes():
            if node.name and node.name in plan.quantized and (rule := self.target.rules.get(node.op_type)) is not None:
                costs[node.name] = rule.costs(node)[0] * self._sizes.get(node.outputs[0].name or "", 1)
        return costs


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
