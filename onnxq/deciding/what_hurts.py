"""What of a result hurts its outputs: the measurements behind each step of :mod:`onnxq.deciding.mend`.

A part of the result is changed at a time, and the result is run on samples. Which parts there are to change, and what
follows from the figures, is said in the module of each step: relief, rescue, ties, tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

import onnx_ir as ir

from onnxq.backend import Kind
from onnxq.calibration.statistics import KeptSample
from onnxq.console.progress import Reporter
from onnxq.deciding.cheap_pieces import cheap_in_float
from onnxq.deciding.decider import SEARCH, Decider
from onnxq.deciding.relief import (
    AMPLIFIED,
    CHEAP,
    NARROW,
    TIED,
    costly_in_integers,
    stored_together,
)
from onnxq.deciding.rescue import TARGET, Blame, blame, groups, groups_apart, to_keep_float
from onnxq.deciding.tails import amplified_tails
from onnxq.deciding.ties import crowded_concats
from onnxq.errors import ExecutionError
from onnxq.measuring.chosen_rows import chosen_rows
from onnxq.measuring.decibels import sqnr_of
from onnxq.measuring.judging import judged, lifts
from onnxq.measuring.metrics import Errors, kept_signal
from onnxq.measuring.outputs import errors_of
from onnxq.measuring.simulation import fuses, simulation
from onnxq.measuring.variants import Variants
from onnxq.quantized import Quantized

__all__ = ["Raised", "blame_layers", "storable", "to_relieve", "to_rescue", "to_widen", "worst_kept", "worst_level"]

_WORTH = 1.0
"""dB that weights left in float must gain over weights stored as integers."""

Raised = Callable[[ir.Model], ir.Model | None]
"""The float model at an opset that has 16-bit weights; None where the result may hold none."""


def blame_layers(
    decider: Decider,
    quantized: Quantized,
    reporter: Reporter,
    *,
    judges: Collection[str] | None = None,
    in_hope: bool = False,
) -> tuple[list[Blame], float]:
    """Measure what each layer does to what varies in the outputs when it alone is quantized.

    Where costs decide what runs in integers, a layer is measured in integers even if they would not pay for it alone. A
    target without a table of costs takes integers wherever it has them, as in the Add of a residual block: where with
    all layers in float less is left than is aimed for, this arithmetic is measured as well.

    Args:
        decider: what made the result.
        quantized: the result.
        reporter: shows progress.
        judges: names of the outputs that count; None: all.
        in_hope: measure only where all layers in float would gain 3 dB.

    Returns:
        A record a group of layers, and the noise of what is quantized besides them, see
        :func:`onnxq.deciding.rescue.blame`; nothing where there are no layers, or no float output.
    """
    layers, (most, samples) = decider.costs(quantized.plan, Kind.COMPUTE), decider.extent()
    if not layers or not any(values.dtype.kind == "f" for sample in samples for values in sample.outputs.values()):
        return [], 0.0
    others = {} if decider.target.by_cost else decider.costs(quantized.plan, Kind.PRODUCT, Kind.ELEMENTWISE)
    if decider.target.by_cost and decider.options.placement == "auto":
        decider = decider.in_integers(layers)
    measure = _measure(decider, decider.without([*layers, *others]), decider.without, samples, judges, of=kept_signal)

    def attempt(kept: Iterable[str]) -> float:
        found = measure(kept)
        return min(found.values()) if found else -math.inf

    if others and attempt(layers) >= TARGET:
        others = {}
    together = groups_apart([list(layers), list(others)], most)
    with reporter.phase(SEARCH, total=len(together), unit="groups") as advance:
        return blame({**layers, **others}, together, attempt, advance, in_hope=in_hope)


def to_relieve(decider: Decider, quantized: Quantized, judges: Collection[str]) -> dict[str, str]:
    """Cheap arithmetic, Concats of one scale, or tails, that cost the result much in integers, with the reasons."""
    plan, (most, samples), model = quantized.plan, decider.extent(), decider.model
    if decider.target.by_cost:
        budget = sum(decider.costs(plan).values())
        chosen = decider.options.placement == "auto"  # which layers are quantized is by cost, too
        tried = {CHEAP: cheap_in_float(model, plan, decider.target, decider.sizes, budget, heads=chosen)}
    else:
        concats = crowded_concats(model, plan, quantized.qparams, decider.statistics)
        tried = {TIED: [(name,) for name in concats], AMPLIFIED: amplified_tails(model, plan, decider.target)}
    tried = {cause: pieces for cause, pieces in tried.items() if pieces}
    reasons: dict[str, str] = {}
    for cause, pieces in tried.items() if samples else ():
        relieved = [*reasons, *(name for piece in pieces for name in piece)]
        measured = _measure(decider, decider.without(relieved), decider.without, samples, judges)
        measure = partial(_besides, measured, tuple(reasons))
        total = len(groups([p[0] for p in pieces], most))
        with decider.reporter.phase(SEARCH, total=total, unit="groups") as advance:
            reasons.update(costly_in_integers(pieces, measure, advance, most=most, cause=cause))
    return reasons


def _besides(
    measure: Callable[[Iterable[str]], dict[str, float]], before: Sequence[str], nodes: Iterable[str]
) -> dict[str, float]:
    """What is measured with some nodes changed besides others."""
    return measure([*before, *nodes])


def to_widen(
    decider: Decider, quantized: Quantized, judges: Collection[str], raised: Raised
) -> tuple[ir.Model, dict[str, str]]:
    """The model at an opset with 16-bit weights, and the layers whose stored weights cost much in 8, with reasons."""
    pieces, (most, samples) = stored_together(quantized.plan), decider.extent()
    model = raised(decider.model) if pieces and samples else None
    if model is None:
        return decider.model, {}
    wider = decider.at(model)
    widened = wider.with_wide([name for piece in pieces for name in piece])
    measure = _measure(decider, widened, wider.with_wide, samples, judges)
    with decider.reporter.phase(SEARCH, total=len(groups([p[0] for p in pieces], most)), unit="groups") as advance:
        return model, costly_in_integers(pieces, measure, advance, most=most, cause=NARROW, tied=False)


def to_rescue(decider: Decider, quantized: Quantized, judges: Collection[str]) -> dict[str, str]:
    """The layers to blame for a poor result, with the reasons."""
    records, rest = blame_layers(decider, quantized, decider.reporter, judges=judges, in_hope=True)
    by_node = {name: record for record in records for name in record.nodes}
    reasons = {}
    for name in to_keep_float(records, rest):
        record = by_node[name]
        alone = "quantized alone" if len(record.nodes) == 1 else "quantized alone with the layers around it,"
        left = sqnr_of(record.noise)
        enough = ", too little beside what others lose" if left > TARGET else ""
        reasons[name] = f"{alone} it leaves {left:.0f} dB at the outputs{enough}"
    return reasons


def storable(
    decider: Decider,
    kept: Collection[str],
    judges: Collection[str] | None,
    raised: Raised | None = None,
    *,
    each: bool = False,
) -> tuple[set[str], ir.Model | None]:
    """Of layers that are to stay float, those whose weights may be stored as integers all the same.

    They may where the result does not lose by it: what hurt were the integers that the layers read, not their weights.

    Args:
        decider: what plans the model.
        kept: the layers.
        judges: names of the outputs that count; None: all.
        raised: the float model at an opset that has 16-bit weights; None: they take 8 bits or none.
        each: no output that counts may lose by it, not the worst alone.

    Returns:
        All of them that have weights to store, or none, as together they do no harm or do; and the model at an opset
        with 16-bit weights, where 8 bits would hurt and these do not.
    """
    if not decider.target.stores_weights:
        return set(), None
    plain, stored = decider.without(kept), decider.without(kept, store=True)
    more = stored.plan.stored.keys() - plain.plan.stored.keys()
    if not more:
        return set(), None
    samples = decider.extent()[1]
    louder = lifts(samples, decider.statistics)

    def scores(made: Quantized) -> dict[str, float]:
        try:
            session = simulation(made, **decider.options.session)
            pairs = ((sample.feeds, sample.outputs) for sample in samples)
            errors = errors_of(session.run, pairs, chosen_rows(decider.model))
        except ExecutionError:
            return {}
        counting = list(errors if judges is None else judges)
        groups = {name: [name] for name in counting} if each else {"": counting}
        return {name: worst_kept(errors, louder, group) for name, group in groups.items()}

    before = scores(plain)

    def harmless(made: Quantized) -> bool:
        after = scores(made)
        return bool(after) and all(after[name] > least - _WORTH for name, least in before.items())

    if harmless(stored):
        return more, None
    model = raised(decider.model) if raised is not None else None
    if model is None or not harmless(decider.at(model).without(kept, store=True, wide=True)):
        return set(), None
    return more, model


def _measure(
    decider: Decider,
    base: Quantized,
    changed: Callable[[Iterable[str]], Quantized],
    samples: Sequence[KeptSample],
    judges: Collection[str] | None,
    of: Callable[[Errors], float] = attrgetter("level"),
) -> Callable[[Iterable[str]], dict[str, float]]:
    """A function that measures the result with some nodes changed.

    It gives the SQNR in dB of each float output that counts, held against the output's signal over all the data;
    nothing where the model does not run.

    Args:
        decider: what made the result.
        base: a model from which the changed ones differ in few nodes: what they have in common is run once.
        changed: nodes → the model with these changed.
        samples: to run on.
        judges: names of the outputs that count; None: all.
        of: which SQNR of an output.
    """
    fuse, louder = fuses(base), lifts(samples, decider.statistics)
    variants = Variants(base.simulated(), samples, fuse_quantizers=fuse, **decider.options.session)

    def measure(nodes: Iterable[str]) -> dict[str, float]:
        made = changed(nodes)
        found = variants.errors_of_base() if made is base else variants.errors(made.simulated())
        return judged({name: of(e) for name, e in found.items() if judges is None or name in judges}, louder)

    return measure


def worst_level(outputs: Mapping[str, Errors], louder: Mapping[str, float], judges: Collection[str]) -> float:
    """SQNR in dB of the worst of the outputs that count."""
    known = {name: errors.level for name, errors in outputs.items() if name in judges}
    return min(judged(known, louder).values(), default=math.inf)


def worst_kept(outputs: Mapping[str, Errors], louder: Mapping[str, float], judges: Collection[str]) -> float:
    """SQNR in dB of what varies in the worst of the outputs that count: a large constant part hides no error."""
    known = {name: kept_signal(errors) for name, errors in outputs.items() if name in judges}
    return min(judged(known, louder).values(), default=math.inf)
