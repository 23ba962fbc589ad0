"""Mixed precision: bits for each layer, those of least noise at the outputs within a budget.

The noise of each layer's weights at each width is measured at the outputs, that layer alone quantized. Noise of
different layers adds up (see :mod:`onnxq.deciding.rescue`), so the best choice under a budget is a multiple-choice
knapsack, solved exactly (as HAWQ-V3 does, Yao et al. 2021, there with Hessian traces in the place of measured noise).
The result are overrides by node, which the quantization that follows obeys, and which can be saved, edited and used
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.bits.bit_choice import BitChoice, Problem, items_of
from onnxq.algorithms.bits.bit_overrides import overrides_of, require_planned
from onnxq.algorithms.bits.budget import FLOAT, KINDS, Budget, Costs, parse_budget, parse_widths, stored_bits
from onnxq.algorithms.bits.part_noise import part_noise
from onnxq.algorithms.bits.widths import (
    asked_widths,
    choices,
    holds_integers,
    require_integers,
    useful_widths,
)
from onnxq.calibration.roles import held_back, spread, to_learn_from
from onnxq.errors import OptionError, StatisticsError
from onnxq.file_system import write_text
from onnxq.locations import made_folder, require_choice
from onnxq.measuring.probe import Probe
from onnxq.notes.other_shapes import rows_depend
from onnxq.options import Options
from onnxq.options.config import to_toml
from onnxq.options.patterns import names_of
from onnxq.survey import make_probe

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check"]

NAME = "mixed_precision"
TITLE = "choose bits for each layer under a budget: avg_bits, size, macs_bits, latency or sqnr"
STAGE = "options"
PARAMETERS: Mapping[str, object] = {
    "avg_bits": 0.0,
    "sqnr": 0.0,
    "budget": "",
    "bits": "",
    "act_bits": "",
    "first_last": 0,
    "save": "",
    "runs": 512,
}
HELP: Mapping[str, str] = {
    "avg_bits": "budget: bits of a weight on average, as in 5.5; 0: not used",
    "sqnr": "budget: the SQNR in dB to reach at the worst output, with the smallest weights; 0: not used",
    "budget": "any budget as KIND:AMOUNT, as in size:0.6; give exactly one of avg_bits, sqnr and budget. KIND is "
    + "; ".join(f"{kind}: {said}" for kind, said in KINDS.items()),
    "bits": "bits of weights to choose from, 2 to 16, as in 3-8 or 4/8/float; empty: by the budget, of those that the "
    "target stores in fewer bits than the next wider one",
    "act_bits": "bits of activations to choose from, 2 to 16, as in 8/16; empty: those of the options for all",
    "first_last": "bits of the weights of the first and the last layers, 2 to 16; 0: chosen like the others",
    "save": "configuration file (.toml) to write the choice to, for --config; empty: none",
    "runs": "measurements at most, 1 or more: each loads a model and runs it on up to 8 samples",
}

_SAMPLES = 8


def check(
    *, avg_bits: float, sqnr: float, budget: str, bits: str, act_bits: str, first_last: int, save: str, runs: int
) -> None:
    """Raise an OptionError for parameters that make no sense, before any work."""
    _budget(avg_bits, sqnr, budget)
    if bits:
        parse_widths(bits)
    if act_bits and FLOAT in parse_widths(act_bits):
        raise OptionError("activations cannot be left float one by one", where=f"{NAME} act_bits")
    if first_last and not 2 <= first_last <= 16:
        raise OptionError(f"{first_last} is not a number of bits from 2 to 16", where=f"{NAME} first_last")
    if runs < 1:
        raise OptionError(f"{runs} is not a whole number of at least 1", where=f"{NAME} runs")
    if save:
        require_choice(save)


def apply(
    draft: FloatDraft,
    *,
    avg_bits: float,
    sqnr: float,
    budget: str,
    bits: str,
    act_bits: str,
    first_last: int,
    save: str,
    runs: int,
) -> None:
    """Choose bits and put them into the draft's options.

    Args:
        draft: its ``options`` are changed.
        avg_bits: budget: average bits of a weight.
        sqnr: budget: SQNR to reach at the worst output, dB, with the smallest weights as stored; where there is a
            choice for activations, with the fewest bits over all multiply-accumulates.
        budget: or any budget as ``KIND:AMOUNT``, see :data:`onnxq.algorithms.bits.budget.KINDS`.
        bits: widths of weights to choose from, as in ``3-8`` or ``4/8/float``; where empty, by the budget, of those
            that the target stores in fewer bits than the next wider one.
        act_bits: widths of activations to choose from, as in ``8/16``; that of the options where empty.
        first_last: bits of the weights of layers with no other layer before or behind them; 0: no rule.
        save: where to write a configuration file with the choice.
        runs: largest number of measurements, each a model loaded and run on at most 8 samples.

    Raises:
        OptionError: nothing is within the budget, or the target has no integers of a width, or for a budget of time no
            table of costs.
        StatisticsError: there are no samples to measure with.
    """
    wanted = _budget(avg_bits, sqnr, budget)
    _require_costs(wanted, draft)
    widths = asked_widths(bits, draft) if bits else useful_widths(wanted.widths, draft)
    act_widths = parse_widths(act_bits) if act_bits else (draft.target.bits(draft.options)[1],)
    require_integers(draft, (*widths, first_last or widths[0]), act_widths)
    kept = draft.statistics.kept
    if not kept:
        raise StatisticsError("the statistics hold no samples to measure with", hint="Calibrate again with --keep 16")
    fitting, held = spread(to_learn_from(kept), _SAMPLES), spread(held_back(kept), _SAMPLES)
    probe = make_probe(draft.model, draft.target, draft.options, draft.statistics, fitting, draft.keep_float)
    open_to = choices(draft, probe.plan, widths, act_widths, first_last)
    if not open_to.layers:
        draft.notes.append(f"{NAME}: no layer has quantized weights")
        return
    noise = part_noise(probe, open_to.open_parts(), open_to.asked(act_widths), runs, draft.reporter)
    kind = "macs_bits" if wanted.kind == "sqnr" and len(act_widths) > 1 else wanted.kind
    costs = Costs(kind, draft.model, draft.target, draft.sizes())
    problem = Problem(probe, items_of(probe.plan, open_to.layers, open_to.activations, noise, costs))
    judge = probe.on(held)
    act_bits_now = draft.target.bits(draft.options)[1]
    if wanted.kind == "sqnr":
        choice = problem.reaching(wanted.amount)
        told = f"{problem.level(choice, judge):.1f} dB on samples held back"
    else:
        limit = costs.limit(list(open_to.layers), wanted.amount)
        within = problem.within(limit, _cheaper(widths, draft))
        choice, told = _better(problem, within, limit, widths, act_bits_now, judge)
    chosen = [s for s in choice.settings if s.part.role == "weights" or s.part in open_to.several]
    changes = overrides_of(chosen, probe.plan, names_of(draft.model))
    draft.options = replace(draft.options, override=(*draft.options.override, *changes))
    require_planned(chosen, draft.plan())
    draft.notes.append(f"{NAME}: {wanted}: {_said(choice)}; {told}")
    if probe.reshaped:
        draft.warnings.append(f"{NAME}: {rows_depend(probe.reshaped, metric=False)}")
    if wasted := _wasted(choice, draft):
        draft.warnings.append(wasted)
    _observe_missing(draft)
    if save:
        _save(Path(save), draft.options, choice, wanted)


def _budget(avg_bits: float, sqnr: float, budget: str) -> Budget:
    given = [f"avg_bits:{avg_bits}"] * bool(avg_bits) + [f"sqnr:{sqnr}"] * bool(sqnr) + [budget] * bool(budget)
    if len(given) != 1:
        hint = "; ".join(f"{kind} ({text})" for kind, text in KINDS.items())
        raise OptionError("takes exactly one budget", where=NAME, hint=f"budget=KIND:AMOUNT with KIND one of {hint}")
    return parse_budget(given[0])


def _require_costs(wanted: Budget, draft: FloatDraft) -> None:
    """Refuse a budget of time for a target of which nobody has told what its kernels take."""
    if wanted.kind == "latency" and not draft.target.by_cost:
        raise OptionError(
            f"{draft.target.name} does not have a table of costs, so the time that layers take there is not known",
            where=f"{NAME} budget",
            hint=f"Give budget=macs_bits:{wanted.amount:g} ({KINDS['macs_bits']})",
        )


def _cheaper(widths: Sequence[int], draft: FloatDraft) -> str:
    """What to do where no choice is within a budget."""
    least = min(draft.target.weight_bits)
    narrower = f"bits down to {least}" if least < min(widths) else ""
    none = f": {draft.target.name} has no weights of fewer than {least} bits"
    return f"Give a larger budget{f', or {narrower}' if narrower else none}"


def _wasted(choice: BitChoice, draft: FloatDraft) -> str:
    """What to say of layers in widths that save nothing; empty where there are none."""
    if not holds_integers(draft):
        return ""
    kinds = Counter(s.bits for s in choice.layers if s.bits < stored_bits(s.bits) in draft.target.weight_bits)
    said = ", ".join(f"{count} of {bits} bits stored in {stored_bits(bits)}" for bits, count in sorted(kinds.items()))
    every = "/".join(map(str, sorted({stored_bits(bits) for bits in kinds})))
    return (
        f"{NAME}: {sum(kinds.values())} of {len(choice.layers)} layers have widths that save nothing here ({said}): "
        f"{every} bits are no larger or slower, and more accurate. Leave out bits= to choose among widths that do"
        if kinds
        else ""
    )


def _better(
    problem: Problem, choice: BitChoice, limit: float, widths: Sequence[int], act_bits: int, judge: Probe
) -> tuple[BitChoice, str]:
    """The choice, or equal bits for all layers where these are better on samples held back."""
    level = problem.level(choice, judge)
    for bits in sorted(widths, reverse=True):
        equal = problem.uniform(bits, act_bits)
        if equal is not None and equal.cost <= limit * (1 + 1e-9):
            other = problem.level(equal, judge)
            name = "float" if bits == FLOAT else f"{bits} bits"
            if other > level:
                return equal, f"{other:.1f} dB on samples held back, better than the best mixture with {level:.1f} dB"
            return choice, f"{level:.1f} dB on samples held back, {other:.1f} dB with {name} throughout"
    return choice, f"{level:.1f} dB on samples held back"


def _said(choice: BitChoice) -> str:
    counts = Counter(setting.bits for setting in choice.layers)
    names = {FLOAT: "float"}
    text = ", ".join(f"{counts[bits]} in {names.get(bits, f'{bits} bits')}" for bits in sorted(counts))
    total = max(1, sum(s.part.elements for s in choice.layers))
    mean, stored = (
        sum(s.part.elements * of(s.bits) for s in choice.layers) / total for of in (lambda bits: bits, stored_bits)
    )
    acts = Counter(s.bits for s in choice.settings if s.part.role == "activations")
    more = f"; activations: {', '.join(f'{acts[b]} in {b} bits' for b in sorted(acts))}" if len(acts) > 1 else ""
    return f"layers: {text}; {mean:.2f} bits a weight, stored in {stored:.2f}{more}"


def _observe_missing(draft: FloatDraft) -> None:
    """Statistics of tensors that are quantized only now that some layers stay float."""
    known = draft.statistics.tensors.keys() | draft.statistics.unobservable.keys()
    missing = [name for name in draft.plan().observed() if name not in known]
    if missing:
        draft.observe_again(missing)


def _save(path: Path, options: Options, choice: BitChoice, wanted: Budget) -> None:
    rest = tuple(text for text in options.algorithms if not text.replace("-", "_").startswith(NAME))
    head = f"bits chosen for {wanted}: {_said(choice)}"
    with made_folder(path):
        write_text(path, to_toml(replace(options, algorithms=rest), head))
