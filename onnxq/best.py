"""Effort ``best``: range methods and algorithms tried one on top of the other, each kept only where it is better on
samples that nothing was learned from.

Where these are too few to tell a gain from chance, both are made again with other samples to learn from, and compared
on those that could not judge before: in the end every sample held back has judged what had not seen it. What is
kept was made the first time.

What runs in integers stays as in the default result; smoothing may add a multiplication in front of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onnxq import plugins
from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import chosen, run
from onnxq.calibration.roles import exchanged, spread
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.progress import Reporter
from onnxq.deciding.cut_off import cut_off
from onnxq.deciding.decider import Decider
from onnxq.effort import TRIED, algorithms_of
from onnxq.errors import OnnxqError
from onnxq.measuring.noise import output_noise
from onnxq.measuring.score import Score
from onnxq.plan import Plan
from onnxq.quantized import Quantized
from onnxq.spec import PerTensor

__all__ = ["improve"]

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


def improve(first: Quantized, decider: Decider, reporter: Reporter) -> tuple[Quantized, list[str]]:
    """Try what may make a result more accurate, with the same nodes in integers.

    Args:
        first: the default result.
        decider: what made it; its statistics hold the samples that algorithms learn from and that judge.
        reporter: shows progress.

    Returns:
        The best model found by the samples that judge, ``first`` where none is better there, and what was tried.
    """
    bench = _Bench(decider)
    state = bench.of(decider.options.range, algorithms_of(decider.options), first)
    steps = _steps(first.plan, state)
    wrong = ", samples of another shape counted as wrong" if state.score.reshaped else ""
    notes = [f"{TRIED}default {state.score.worst:.1f} dB{wrong}"] if math.isfinite(state.score.worst) else []
    with reporter.phase("find the best", total=len(steps), unit="steps") as advance:
        for done, (name, step) in enumerate(steps, start=1):
            try:
                trial = bench.tried(step(state))
                new, old = bench.compared(trial, state)
            except OnnxqError as error:  # what there is must not be lost by it
                notes.append(f"{TRIED}{name} failed: {error}")
                advance(done)
                continue
            why = new.no_better_than(old)
            if why is None and trial.range != state.range:
                why = _cut_off(state.quantized, trial.quantized, decider)
            undone = "" if why is None else f", undone: {why}" if why else ", undone"
            notes.append(f"{TRIED}{name} {new.worst - old.worst:+.1f} dB{undone}")
            if why is None:
                state = trial
            advance(done)
    return state.quantized, [*notes, *state.said]


@dataclass(eq=False)
class _Bench:
    """Where states are made and compared.

    Attributes:
        decider: what made the default result.
    """

    decider: Decider
    _turns: list[tuple[Statistics, Sequence[KeptSample]]] = field(init=False)
    _known: dict[tuple[str, tuple[str, ...], int], Score] = field(default_factory=dict)

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
        return _State(ranges, algorithms, quantized, _score(quantized, self.decider, self._turns[0][1]))

    def tried(self, wanted: _State) -> _State:
        """A state with its model and score."""
        quantized, said = _made(wanted, self.decider, self._turns[0][0])
        return replace(self.of(wanted.range, wanted.algorithms, quantized), said=tuple(said))

    def compared(self, trial: _State, state: _State) -> tuple[Score, Score]:
        """Scores of two states, on as many samples as it takes to tell which is better."""
        new, old = trial.score, state.score
        for turn in range(1, len(self._turns)):
            if not new.open(old, turn / len(self._turns)):
                break
            new, old = new.joined(self._again(trial, turn)), old.joined(self._again(state, turn))
        return new, old

    def _again(self, state: _State, turn: int) -> Score:
        """The score of a state made with other samples to learn from, on those that judge then."""
        key = (state.range, state.algorithms, turn)
        if key not in self._known:
            statistics, judges = self._turns[turn]
            self._known[key] = _score(_made(state, self.decider, statistics)[0], self.decider, judges)
        return self._known[key]


def _cut_off(before: Quantized, after: Quantized, decider: Decider) -> str | None:
    """Why other ranges are no gain after all; None where they serve all the data, not only the samples that judge."""
    found = cut_off(before.plan, before.qparams, after.qparams, decider.statistics)
    if found is None:
        return None
    tensor, lost = found
    return f"tensor {tensor!r} loses {lost:.1f} dB on all the data, which holds larger values than the samples compared"


def _steps(plan: Plan, start: _State) -> list[tuple[str, Callable[[_State], _State]]]:
    """Names of steps and what they change, from those that the others build on to the last."""
    weights = [site.spec.bits for site in plan.sites if site.role == "weight"]
    installed = set(plugins.names("onnxq.algorithms"))
    ops = set(plan.quantized.values())
    in_front, rounding = [], []
    if ops & {"MatMul", "Gemm"}:
        in_front.append("smoothquant")
    if any(site.role == "weight" and isinstance(site.spec.granularity, PerTensor) for site in plan.sites):
        in_front.append("equalize")
    few = min(weights, default=8) < 8
    rounding.append("gptq:prefix=true" if few else "gptq")
    if few:
        rounding.append("adaround")
        if _has_torch():
            rounding.append("reconstruct")
    ranges = ("minmax", "percentile:99.99", "entropy") if plan.observed() else ()  # else weights alone are integers
    steps: list[tuple[str, Callable[[_State], _State]]] = [
        (name, _with_range(name)) for name in ranges if name != start.range
    ]
    steps += [(name, _in_front(name)) for name in in_front if name in installed]
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


def _made(wanted: _State, decider: Decider, statistics: Statistics) -> tuple[Quantized, list[str]]:
    """The model of a state, made with these statistics, and what its algorithms say."""
    choices = chosen(wanted.algorithms)
    model, said, keep = decider.model, [], {}
    if any(choice.stage == "float" for choice in choices):
        draft = FloatDraft(model.clone(), decider.target, decider.options, statistics)
        run(choices, draft)
        model, statistics, said, keep = draft.model, draft.statistics, draft.notes, draft.keep_float
    variant = decider.variant(choices, replace(decider.options, range=wanted.range), model, statistics, keep)
    quantized, more = variant.again()
    return quantized, [*said, *more]


def _score(quantized: Quantized, decider: Decider, judges: Sequence[KeptSample]) -> Score:
    found = output_noise(quantized, judges, decider.options)
    if found is None:
        floats = {n: None for sample in judges for n, values in sample.outputs.items() if values.dtype.kind == "f"}
        return Score({name: np.full(len(judges), np.inf) for name in floats})
    return Score(
        {name: of.noise / of.signal for name, of in found.items() if of.signal > 0},
        any(of.reshaped for of in found.values()),
    )


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None
