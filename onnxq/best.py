"""Effort ``best``: range methods and algorithms tried one on top of the other, each kept only where it is better on
samples that nothing was learned from.

Where these are too few to tell a gain from chance, both are made again with other samples to learn from, and compared
on those that could not judge before: in the end every sample held back has judged what had not seen it. What is
kept was made the first time.

What runs in integers stays as in the default result; smoothing may add a multiplication in front of a layer. What
comes of the algorithms of a state is not made again for a step that only adds to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq import plugins
from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import chosen, run
from onnxq.algorithms import reconstruct
from onnxq.algorithms.channels.streams import quantized_streams
from onnxq.calibration.roles import exchanged, spread
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.deadline import Deadline, TimeIsUpError
from onnxq.deciding.cut_off import cut_off
from onnxq.deciding.decider import Decider
from onnxq.deciding.stages import Stages
from onnxq.effort import TRIED, UNTRIED, algorithms_of
from onnxq.errors import OnnxqError
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.score import Score, score_of
from onnxq.plan import Plan
from onnxq.quantized import Quantized
from onnxq.spec import USUAL_BITS, PerTensor

__all__ = ["improve"]

_LONGEST = 10.0
"""Minutes that training may take where no limit is given."""
_JUDGES = 32
"""Samples that judge at a time, at most."""


@dataclass(frozen=True)
class _State:
    """The best so far: range method, algorithms, and what they give."""

    range: str
    algorithms: tuple[str, ...]
    quantized: Quantized
    score: Score
    said: tuple[str, ...] = ()


_Step = tuple[str, Callable[[_State], _State]]
"""A name, and what it makes of a state."""


def improve(first: Quantized, decider: Decider, until: float = math.inf) -> tuple[Quantized, list[str]]:
    """Try what may make a result more accurate, with the same nodes in integers.

    Args:
        first: the default result.
        decider: what made it; its statistics hold the samples that algorithms learn from and that judge.
        until: time of ``time.monotonic`` at which it ends.

    Returns:
        The best model found by the samples that judge, ``first`` where none is better there, and what was tried, and
        what was not for want of time.
    """
    bench = _Bench(decider, Deadline(until))
    state = bench.of(decider.options.range, algorithms_of(decider.options), first)
    steps = _steps(first.plan, decider.model, state)
    left_out: list[str] = []
    if until == math.inf:
        steps, left_out = _in_minutes(steps, decider)
    wrong = ", samples of another shape counted as wrong" if state.score.reshaped else ""
    notes = [f"{TRIED}default {state.score.worst:.1f} dB{wrong}"] if math.isfinite(state.score.worst) else []
    with decider.reporter.phase("find the best", total=len(steps), unit="steps") as advance:
        for done, (name, step) in enumerate(steps):
            advance(done)
            try:
                trial = bench.tried(step(state))
                new, old = bench.compared(trial, state)
            except TimeIsUpError:
                notes.append(f"{UNTRIED}{', '.join(name for name, _ in steps[done:])}: the time was up")
                break
            except OnnxqError as error:  # what there is must not be lost by it
                notes.append(f"{TRIED}{name} failed: {error}")
                continue
            why = new.no_better_than(old)
            if why is None and trial.range != state.range:
                why = _cut_off(state.quantized, trial.quantized, decider)
            undone = "" if why is None else f", undone: {why}" if why else ", undone"
            gain = new.worst - old.worst
            notes.append(f"{TRIED}{name}{f' {gain:+.1f} dB' if not math.isnan(gain) else ''}{undone}")
            if why is None:
                state = trial
            bench.forget_all_but(state)
        else:
            advance(len(steps))
    return state.quantized, [*notes, *left_out, *state.said]


def _in_minutes(steps: Sequence[_Step], decider: Decider) -> tuple[list[_Step], list[str]]:
    """Steps without training that would take longer than anyone expects who sets no limit, and that it is left out."""
    minutes = reconstruct.seconds(decider.macs()) / 60
    kept = [(name, step) for name, step in steps if name != reconstruct.NAME or minutes <= _LONGEST]
    if len(kept) == len(steps):
        return kept, []
    length = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    why = f"it would take about {length} on one thread; with --max-minutes it is tried"
    return kept, [f"{UNTRIED}{reconstruct.NAME}: {why}"]


@dataclass(eq=False)
class _Bench:
    """Where states are made and compared.

    Attributes:
        decider: what made the default result.
        deadline: ends the work.
    """

    decider: Decider
    deadline: Deadline
    _turns: list[tuple[Statistics, Sequence[KeptSample]]] = field(init=False)
    _known: dict[tuple[str, tuple[str, ...], int], Score] = field(default_factory=dict)
    _in_front: dict[tuple[tuple[str, ...], int], FloatDraft] = field(default_factory=dict)
    _stages: dict[tuple[str, tuple[str, ...], int], Stages] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._turns = []
        for turn, (arranged, judges) in enumerate(exchanged(self.decider.statistics.kept)):
            statistics = self.decider.statistics
            if turn:
                statistics = replace(statistics, kept=arranged)
                statistics.ranges = self.decider.statistics.ranges  # of all the data, whoever learns
            self._turns.append((statistics, spread(judges, _JUDGES)))

    def of(self, ranges: str, algorithms: tuple[str, ...], quantized: Quantized) -> _State:
        """The state of a model that is there."""
        return _State(ranges, algorithms, quantized, score_of(quantized, self._turns[0][1], self.decider.options))

    def tried(self, wanted: _State) -> _State:
        """A state with its model and score.

        Raises:
            TimeIsUpError: before it is made.
        """
        quantized, said = self._made(wanted, 0)
        return replace(self.of(wanted.range, wanted.algorithms, quantized), said=tuple(said))

    def compared(self, trial: _State, state: _State) -> tuple[Score, Score]:
        """Scores of two states, on as many samples as it takes to tell which is better, and there is time for."""
        new, old = trial.score, state.score
        for turn in range(1, len(self._turns)):
            if not new.open(old, turn / len(self._turns)):
                break
            try:
                new, old = new.joined(self._again(trial, turn)), old.joined(self._again(state, turn))
            except TimeIsUpError:
                break
        return new, old

    def forget_all_but(self, state: _State) -> None:
        """Keep of what was made on the way to states no more than the next ones may build on."""
        front = _front(state.algorithms)
        self._in_front = {key: made for key, made in self._in_front.items() if key[0] == front}
        self._stages = {key: made for key, made in self._stages.items() if key[:2] == (state.range, front)}

    def _again(self, state: _State, turn: int) -> Score:
        """The score of a state made with other samples to learn from, on those that judge then."""
        key = (state.range, state.algorithms, turn)
        if key not in self._known:
            self._known[key] = score_of(self._made(state, turn)[0], self._turns[turn][1], self.decider.options)
        return self._known[key]

    def _made(self, wanted: _State, turn: int) -> tuple[Quantized, list[str]]:
        """The model of a state, made with the samples that learn in a turn, and what its algorithms say."""
        self.deadline.check()
        decider, choices = self.decider, chosen(wanted.algorithms)
        front = _front(wanted.algorithms)
        draft = self._in_front.get((front, turn))
        if draft is None:
            draft = FloatDraft(decider.model, decider.target, decider.options, self._turns[turn][0], self.deadline)
            if front:
                draft.model = decider.model.clone()
                run(choices, draft)
            self._in_front[front, turn] = draft
        options = replace(decider.options, range=wanted.range)
        variant = decider.variant(choices, options, draft.model, draft.statistics, draft.keep_float, self.deadline)
        quantized, said = variant.again(stages=self._stages.setdefault((wanted.range, front, turn), {}))
        return quantized, [*draft.notes, *said]


def _front(algorithms: Sequence[str]) -> tuple[str, ...]:
    """Those of some algorithms that are of the float stage, as they were written."""
    return tuple(choice.text for choice in chosen(algorithms) if choice.stage == "float")


def _cut_off(before: Quantized, after: Quantized, decider: Decider) -> str | None:
    """Why other ranges are no gain after all; None where they serve all the data, not only the samples that judge."""
    found = cut_off(before.plan, before.qparams, after.qparams, decider.statistics)
    if found is None:
        return None
    tensor, lost = found
    return f"tensor {tensor!r} loses {lost:.1f} dB on all the data, which holds larger values than the samples compared"


def _steps(plan: Plan, model: ir.Model, start: _State) -> list[_Step]:
    """Names of steps and what they change, from those that the others build on to the last."""
    weights = [site.spec for site in plan.sites if site.role == "weight"]
    of_tensors = [spec for spec in weights if isinstance(spec.granularity, PerTensor)]
    installed = set(plugins.names("onnxq.algorithms"))
    ops = set(plan.quantized.values())
    in_front, rounding = [], []
    if quantized_streams(model, plan):
        in_front.append("rotate")
    if ops & {"MatMul", "Gemm"}:
        in_front.append("smoothquant")
    if of_tensors:
        clips = any(node.op_type == "Clip" for node in all_nodes(model))
        in_front.append("equalize:clip=true" if clips else "equalize")
    few = min((spec.bits for spec in weights), default=USUAL_BITS) < USUAL_BITS
    coarse = few or 2 * len(of_tensors) > len(weights)  # what is lost before a layer is more than its own rounding
    rounding.append("gptq:prefix=true" if coarse else "gptq")
    if few:
        rounding.append("adaround")
        if _has_torch():
            rounding.append("reconstruct")
    ranges = ("minmax", "percentile:99.99", "entropy") if plan.observed() else ()  # else weights alone are integers
    steps: list[_Step] = [(name, _with_range(name)) for name in ranges if name != start.range]
    steps += [(name, _in_front(name)) for name in in_front if name.partition(":")[0] in installed]
    steps += [(name, _rounded_by(name, rounding)) for name in rounding if name.partition(":")[0] in installed]
    steps.append(("bias_correction:method=empirical", _with_empirical_bias))
    return steps


def _with_range(name: str) -> Callable[[_State], _State]:
    return lambda state: replace(state, range=name)


def _in_front(name: str) -> Callable[[_State], _State]:
    return lambda state: replace(state, algorithms=(name, *state.algorithms))


def _rounded_by(name: str, others: Sequence[str]) -> Callable[[_State], _State]:
    """One algorithm decides the rounding; biases are corrected after it."""

    def change(state: _State) -> _State:
        rest = [text for text in state.algorithms if text not in others]
        at = next((i for i, text in enumerate(rest) if text.startswith("bias_correction")), len(rest))
        return replace(state, algorithms=(*rest[:at], name, *rest[at:]))

    return change


def _with_empirical_bias(state: _State) -> _State:
    rest = tuple(text for text in state.algorithms if not text.startswith("bias_correction"))
    return replace(state, algorithms=(*rest, "bias_correction:method=empirical"))


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None
