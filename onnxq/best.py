"""Effort ``best``: range methods and algorithms tried one on top of the other, each kept only where it is better on
samples that nothing was learned from.

What runs in integers stays as in the default result; smoothing may add a multiplication in front of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnxq import plugins
from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import chosen, run
from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.console.progress import Reporter
from onnxq.deciding.cut_off import cut_off
from onnxq.deciding.decider import Decider
from onnxq.effort import TRIED, algorithms_of
from onnxq.errors import OnnxqError
from onnxq.measuring.noise import output_noise
from onnxq.plan import Plan
from onnxq.quantized import Quantized
from onnxq.spec import PerTensor

__all__ = ["improve"]

_LEAST_GAIN = 0.1
"""dB at the worst output that a step must gain; less is within what other samples would change."""
_DEVIATIONS = 2.5
"""Standard errors by which the gain in dB, sample by sample, must differ from none."""
_JUDGES = 32
"""Samples that judge, at most."""


@dataclass(frozen=True)
class _State:
    """The best so far: range method, algorithms, and what they give."""

    range: str
    algorithms: tuple[str, ...]
    quantized: Quantized
    score: _Score
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Score:
    """Noise over the mean signal for each float output and sample: output name → power ratios, one a sample.

    A sample of another shape than the float model's is all noise, see :func:`onnxq.measuring.noise.output_noise`.
    """

    noise: Mapping[str, NDArray[np.float64]]
    reshaped: bool = False

    @property
    def sqnr(self) -> dict[str, float]:
        """SQNR in dB of each output over all samples."""
        return {name: _decibel(float(ratios.mean())) for name, ratios in self.noise.items()}

    @property
    def worst(self) -> float:
        """SQNR in dB of the worst output."""
        return min(self.sqnr.values(), default=math.inf)

    def no_better_than(self, other: _Score) -> str | None:
        """Why this is no better than another, empty where the worst output tells; ``None`` where it is better.

        Better is where the worst output gains, by more than chance would give, and the outputs on average do not lose.
        """
        if not self.noise or not other.noise or not math.isfinite(self.worst):
            return "it gives no numbers to compare" if self.noise and other.noise else ""
        mine, theirs = self.sqnr, other.sqnr
        worst = min(theirs, key=theirs.__getitem__)
        floor = np.finfo(np.float64).tiny  # a sample without noise
        saved = 10.0 * np.log10(np.maximum(other.noise[worst], floor) / np.maximum(self.noise[worst], floor))
        mean = float(saved.mean())
        chance = float(saved.std(ddof=1)) / math.sqrt(len(saved)) if len(saved) > 1 else 0.0
        gain = self.worst - other.worst
        if gain < _LEAST_GAIN:
            return "too little" if gain > 0 else ""
        if mean <= _DEVIATIONS * chance:
            return (
                f"within chance: {mean:.1f} dB a sample at {worst!r}, with a standard error of {chance:.1f} dB over "
                f"{len(saved)} samples"
            )
        if sum(mine.values()) < sum(theirs.values()):
            most = min(theirs, key=lambda name: mine[name] - theirs[name])
            lost = theirs[most] - mine[most]
            return f"output {most!r} loses {lost:.1f} dB, and the outputs together more than is gained"
        return None


def improve(
    first: Quantized, decider: Decider, samples: Sequence[KeptSample], reporter: Reporter
) -> tuple[Quantized, list[str]]:
    """Try what may make a result more accurate, with the same nodes in integers.

    Args:
        first: the default result.
        decider: what made it.
        samples: samples held back that no algorithm learns from.
        reporter: shows progress.

    Returns:
        The best model found, at worst ``first``, and what was tried, with gains in dB.
    """
    judges = spread(samples, _JUDGES)
    state = _State(decider.options.range, algorithms_of(decider.options), first, _score(first, decider, judges))
    steps = _steps(first.plan, state)
    wrong = ", samples of another shape counted as wrong" if state.score.reshaped else ""
    notes = [f"{TRIED}default {state.score.worst:.1f} dB{wrong}"] if math.isfinite(state.score.worst) else []
    with reporter.phase("find the best", total=len(steps), unit="steps") as advance:
        for done, (name, step) in enumerate(steps, start=1):
            try:
                trial = _try(step(state), decider, judges)
            except OnnxqError as error:  # what there is must not be lost by it
                notes.append(f"{TRIED}{name} failed: {error}")
                advance(done)
                continue
            why = trial.score.no_better_than(state.score)
            if why is None and trial.range != state.range:
                why = _cut_off(state.quantized, trial.quantized, decider)
            gain = trial.score.worst - state.score.worst
            undone = "" if why is None else f", undone: {why}" if why else ", undone"
            notes.append(f"{TRIED}{name} {gain:+.1f} dB{undone}")
            if why is None:
                state = trial
            advance(done)
    return state.quantized, [*notes, *state.said]


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


def _try(wanted: _State, decider: Decider, judges: Sequence[KeptSample]) -> _State:
    """The state with its model and score."""
    choices = chosen(wanted.algorithms)
    model, statistics, said, keep = decider.model, decider.statistics, [], {}
    if any(choice.stage == "float" for choice in choices):
        draft = FloatDraft(model.clone(), decider.target, decider.options, statistics)
        run(choices, draft)
        model, statistics, said, keep = draft.model, draft.statistics, draft.notes, draft.keep_float
    variant = decider.variant(choices, replace(decider.options, range=wanted.range), model, statistics, keep)
    quantized, more = variant.again()
    return replace(wanted, quantized=quantized, score=_score(quantized, decider, judges), said=(*said, *more))


def _score(quantized: Quantized, decider: Decider, judges: Sequence[KeptSample]) -> _Score:
    found = output_noise(quantized, judges, decider.options)
    if found is None:
        floats = {n: None for sample in judges for n, values in sample.outputs.items() if values.dtype.kind == "f"}
        return _Score({name: np.full(len(judges), np.inf) for name in floats})
    return _Score(
        {name: of.noise / of.signal for name, of in found.items() if of.signal > 0},
        any(of.reshaped for of in found.values()),
    )


def _decibel(noise: float) -> float:
    if not math.isfinite(noise):
        return -math.inf
    return -10.0 * math.log10(noise) if noise > 0 else math.inf


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None
