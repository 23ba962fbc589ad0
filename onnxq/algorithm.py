"""What algorithms work on: a private copy of the float model, and later its plan and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.calibration.collect import collect
from onnxq.calibration.moved import Move, over_all
from onnxq.calibration.roles import guards_teach, held_back, to_learn_from
from onnxq.calibration.sizes import sizes_on
from onnxq.calibration.statistics import KeptSample, Statistics, TensorStatistics
from onnxq.console.progress import Reporter, Silent
from onnxq.graph.lookup import Lookup
from onnxq.measuring.rescaled import mark_rescaled
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.planner import make_plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized

__all__ = ["Algorithm", "Draft", "FloatDraft"]


class Algorithm(Protocol):
    """A module or object that is registered in the entry-point group ``onnxq.algorithms``.

    Attributes:
        NAME: what ``--algorithm`` takes.
        TITLE: one line for tables.
        STAGE: ``"float"``: changes the float model before it is planned, without changing what it computes;
            ``"options"``: decides options, such as bits of layers, by the data, after the float stage;
            ``"numbers"``: changes weights, biases and numbers of a planned model.
        PARAMETERS: every parameter with its default; a value given takes the type of the default.

    A function ``check(**parameters)`` beside these may refuse parameters before any work; ``quick(**parameters)`` says
    whether the algorithm costs so little that it runs each time a plan is tried, not only on the last one. A mapping
    ``HELP`` holds a sentence for each parameter: what it does, its unit and the values that it takes, for
    ``onnxq algorithms NAME``.
    """

    NAME: str
    TITLE: str
    STAGE: str
    PARAMETERS: Mapping[str, object]


class _Samples:
    """The kept samples of a draft, by what they are for."""

    statistics: Statistics

    @property
    def fitting(self) -> Sequence[KeptSample]:
        """Kept samples to learn from."""
        return to_learn_from(self.statistics.kept)

    @property
    def held(self) -> Sequence[KeptSample]:
        """Kept samples that tell whether what was learned is better; the others' neighbours."""
        return held_back(self.statistics.kept)


@dataclass(eq=False)
class FloatDraft(_Samples):
    """A float model on its way to a plan; ``apply(draft, **parameters)`` of a float-stage algorithm changes it.

    One of the options stage changes :attr:`options` alone.

    Attributes:
        model: a private copy, changed in place.
        target: the backend.
        options: what the user asked for, and what an algorithm of the options stage has decided.
        statistics: of this model; kept true by :meth:`observe_again`.
        reporter: shows progress.
        notes: what was done, and what was skipped and why.
        warnings: what a user should know of it.
        keep_float: node name → reason, for nodes that an algorithm wants to stay float.
    """

    model: ir.Model
    target: Backend
    options: Options
    statistics: Statistics
    reporter: Reporter = field(default_factory=Silent)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    keep_float: dict[str, str] = field(default_factory=dict)
    _lookup: Lookup | None = field(default=None, init=False, repr=False)
    _on_kept: dict[str, TensorStatistics] = field(default_factory=dict, init=False, repr=False)

    def copy(self) -> FloatDraft:
        """A draft to try changes on, which leave this one as it is."""
        made = FloatDraft(
            self.model.clone(), self.target, self.options, self.statistics, keep_float=dict(self.keep_float)
        )
        made._on_kept = dict(self._on_kept)
        return made

    def take(self, tried: FloatDraft) -> None:
        """Have the model of a copy, with what is known of it."""
        self.model, self.statistics, self.keep_float = tried.model, tried.statistics, tried.keep_float
        self._on_kept = tried._on_kept

    def lookup(self) -> Lookup:
        """The parts of the model by name, looked up once for all changes that are made to it."""
        if self._lookup is None or self._lookup.model is not self.model:
            self._lookup = Lookup(self.model)
        return self._lookup

    def plan(self) -> Plan:
        """Where the model as it is now would be quantized."""
        return make_plan(self.model, self.target, self.options, keep_float=self.keep_float, sizes=self.sizes())

    def sizes(self) -> dict[str, int]:
        """Tensor name → number of elements in a typical kept sample, as far as it is known."""
        return sizes_on(self.model, self.statistics)

    def observe_again(self, tensors: Sequence[str] | Mapping[str, Move], before: FloatDraft | None = None) -> None:
        """Take new statistics of tensors whose values have changed, or which are new, on the kept samples.

        Where the data had more samples than these, give ``before``: ranges of the kept samples alone are too narrow.

        Args:
            tensors: names; of those that follow from one tensor before the change, what was done to its channels.
            before: the draft before the change; of the tensors it tells what the other samples hold, too.
        """
        kept = self.statistics.kept
        made = self._observed(tensors)
        again = set(tensors)
        changed = [name for name in tensors if name in self.statistics.tensors]  # the others are new
        mark_rescaled(self.model, tensors if isinstance(tensors, Mapping) else changed)
        known = {name: stats for name, stats in self.statistics.tensors.items() if name not in again}
        unobservable = {**self.statistics.unobservable, **made.unobservable}
        fresh = {sample.index: sample.means for sample in made.kept}
        samples = [
            replace(sample, means={**sample.means, **fresh.get(position, {})}) for position, sample in enumerate(kept)
        ]
        found = made.tensors
        if isinstance(tensors, Mapping) and before is not None and len(kept) < self.statistics.samples:
            found = before._over_all(found, tensors)
        self._on_kept.update(made.tensors)
        self.statistics = replace(self.statistics, tensors={**known, **found}, unobservable=unobservable, kept=samples)

    def _over_all(
        self, changed: Mapping[str, TensorStatistics], moves: Mapping[str, Move]
    ) -> dict[str, TensorStatistics]:
        """Statistics over all data of tensors that were changed, from those on the kept samples."""
        every = self.statistics.tensors
        sources = {move.source for name, move in moves.items() if name in changed and move.source in every}
        missing = [name for name in every if name in sources and name not in self._on_kept]
        if missing:
            self._on_kept.update(self._observed(missing).tensors)
        return {
            name: over_all(stats, self._on_kept[move.source], every[move.source])
            if (move := moves[name]).source in sources and move.source in self._on_kept
            else stats
            for name, stats in changed.items()
        }

    def _observed(self, tensors: Iterable[str]) -> Statistics:
        """Statistics of tensors of the model as it is now, on the kept samples."""
        kept = self.statistics.kept
        return collect(
            self.model,
            list(tensors),
            [sample.feeds for sample in kept],
            keep=len(kept),
            keep_bytes=1 << 40,
            **self.options.session,
        )


@dataclass(eq=False)
class Draft(_Samples):
    """A planned model with its numbers; ``apply(draft, **parameters)`` of a numbers-stage algorithm changes it.

    A weight is changed by giving its initializer other numbers: those it holds when all algorithms are done are rounded
    to nearest. An algorithm that decides the rounding itself writes the dequantized numbers, which round to themselves.
    The scales of biases, which follow from those of data and weights, are made anew after one of another package.

    Attributes:
        model: a private copy of the float model, whose weights and biases are changed in place.
        reference: the float model as it was, not to be changed.
        plan: where it is quantized.
        numbers: parameters by site name, changed in place.
        target: the backend.
        options: what the user asked for.
        statistics: of the model.
        sizes: tensor name → number of elements in a typical kept sample.
        reporter: shows progress.
        notes: what was done, and what was skipped and why.
    """

    model: ir.Model
    reference: ir.Model
    plan: Plan
    numbers: dict[str, QParams]
    target: Backend
    options: Options
    statistics: Statistics
    sizes: Mapping[str, int]
    reporter: Reporter = field(default_factory=Silent)
    notes: list[str] = field(default_factory=list)

    @property
    def guards_teach(self) -> bool:
        """Whether :attr:`held` may be learned from as well, once they have told."""
        return guards_teach(self.statistics.kept)

    def quantized(self) -> Quantized:
        """The model as it is now, to be rendered and run; later changes of the draft do not reach it."""
        return Quantized(
            self.model.clone(), self.plan, dict(self.numbers), self.target, format=self.options.format or "", version=""
        )
