"""Where a result is poor: what of it hurts the outputs is found by measuring, and stays float.

Below 40 dB that is arithmetic between layers which float makes next to no dearer (:mod:`onnxq.deciding.relief`), or,
where a target has no table of costs, Concats whose one scale is far too large for some of what they read
(:mod:`onnxq.deciding.ties`), and arithmetic just before float arithmetic that amplifies its noise
(:mod:`onnxq.deciding.tails`). Below 30 dB, weights that float layers store as integers take 16 bits where 8 cost as
much. Below 12 dB it is the layers to blame (:mod:`onnxq.deciding.rescue`); where the result stays of no use
all the same, only weights are quantized. An output's error is held against its signal
over all the data (:mod:`onnxq.measuring.judging`), and the worst output decides. An output that has another shape than
the float model's in some sample decides nothing: its rows depend on the numbers, and no layer is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxq.calibration.roles import samples_to_verify, spread
from onnxq.calibration.statistics import KeptSample
from onnxq.console.progress import Reporter
from onnxq.deciding.decide import Decider
from onnxq.deciding.relief import (
    AMPLIFIED,
    CHEAP,
    FINE,
    NARROW,
    TIED,
    cheap_in_float,
    costly_in_integers,
    stored_together,
)
from onnxq.deciding.rescue import POOR, Blame, blame, extent, groups, to_keep_float
from onnxq.deciding.tails import amplified_tails
from onnxq.deciding.ties import crowded_concats
from onnxq.effort import learns
from onnxq.errors import ExecutionError
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.final_check import Verification
from onnxq.measuring.judging import judged, lifts
from onnxq.measuring.metrics import Errors, kept_signal
from onnxq.measuring.outputs import errors_of
from onnxq.measuring.simulation import simulation
from onnxq.measuring.variants import Variants
from onnxq.notes.reasons import LOST
from onnxq.planning.macs import multiply_accumulates
from onnxq.quantized import Quantized

__all__ = ["blame_layers", "mend"]

_STEP = "find what hurts"
_MANY_OUTPUTS = 4
_COARSE = 30.0
"""dB: only a result below this is worth weights of twice the size."""
_WORTH = 1.0
"""dB that weights left in float must gain over weights stored as integers."""

_USELESS = 10.0
"""dB: below this a model is of no use, and weights alone are quantized where that leaves one that is."""

Verify = Callable[[Quantized], Verification]
Raised = Callable[[ir.Model], ir.Model | None]


def mend(
    decider: Decider,
    quantized: Quantized,
    verification: Verification,
    verify: Verify,
    raised: Raised,
    reporter: Reporter,
) -> tuple[Quantized, Verification]:
    """A result with as much of it in float as makes it good enough; itself where it is, or where nothing helps.

    Args:
        decider: what made it; keeps float from now on what the result does.
        quantized: the result.
        verification: of it.
        verify: verifies another.
        raised: the float model at an opset that has 16-bit weights; None where the result may hold none.
        reporter: shows progress.
    """
    worst = verification.worst
    if worst is None or worst[1].sqnr >= FINE:
        return quantized, verification
    judges = {n for n, errors in verification.outputs.items() if not errors.reshaped and not math.isnan(errors.sqnr)}
    verified = samples_to_verify(decider.statistics.kept, learns(decider.options))
    louder = lifts(verified, decider.statistics)

    def score(of: Verification) -> float:
        return _worst(of.outputs, louder, judges)

    if score(verification) < FINE:
        reasons = _relieved(decider, quantized, judges, reporter)
        if reasons:
            decider.keep_float(reasons)
            quantized = decider.again()[0]
            verification = verify(quantized)
    if score(verification) < _COARSE:
        model, reasons = _too_narrow(decider, quantized, judges, raised, reporter)
        if reasons:
            decider.store_wide(model, reasons)
            quantized = decider.again()[0]
            verification = verify(quantized)
    many = False
    if score(verification) < POOR:
        reasons = _rescued(decider, quantized, judges, reporter)
        store = bool(reasons) and _may_store(decider, reasons, judges)
        rescued = decider.again(reasons, store=store)[0] if reasons else None
        better = verify(rescued) if rescued is not None else None
        if rescued is not None and better is not None and score(better) > score(verification):
            quantized, verification = rescued, better
            decider.keep_float(reasons, store=store)
            many = len(judges) >= _MANY_OUTPUTS
    lost = _lost(verification, louder, judges, min(decider.options.min_sqnr, _USELESS))
    if lost and decider.target.stores_weights:
        reasons = dict.fromkeys(quantized.plan.quantized, lost)
        stored = decider.again(reasons, store=True)[0]
        better = verify(stored)
        if not stored.plan.quantized and not _lost(better, louder, judges, decider.options.min_sqnr):
            decider.keep_float(reasons, store=True)
            return stored, better
    if many:
        decider.hints.append(
            f"{len(judges)} outputs are judged, and the worst of them decides what stays float: those that "
            "nobody reads are best taken out of the model first (onnx.utils.extract_model)"
        )
    return quantized, verification


def _lost(verification: Verification, louder: Mapping[str, float], judges: Collection[str], floor: float) -> str:
    """What is left, its mean apart, of the output that suffers most; empty where all outputs have the floor."""
    outputs = verification.outputs.items()
    left = judged({name: min(e.sqnr, kept_signal(e)) for name, e in outputs if name in judges}, louder)
    worst = min(left, key=lambda name: left[name], default="")
    return f"{LOST}{left[worst]:.1f} dB are left of output {worst!r}" if left and left[worst] < floor else ""


def blame_layers(
    decider: Decider,
    quantized: Quantized,
    reporter: Reporter,
    *,
    judges: Collection[str] | None = None,
    in_hope: bool = False,
) -> tuple[list[Blame], float]:
    """What each layer does to the outputs when it alone is quantized, see :func:`onnxq.deciding.rescue.blame`.

    Args:
        decider: what made it.
        quantized: the result.
        reporter: shows progress.
        judges: names of the outputs that count; None: all.
        in_hope: see there.
    """
    layers, (most, samples) = decider.layers(quantized.plan), _extent(decider)
    if not layers or not samples:
        return [], 0.0
    measure = _measure(decider, decider.without(layers), decider.without, samples, judges)

    def attempt(kept: Iterable[str]) -> float:
        found = measure(kept)
        return min(found.values()) if found else -math.inf

    if not any(values.dtype.kind == "f" for sample in samples for values in sample.outputs.values()):
        return [], 0.0
    with reporter.phase(_STEP, total=len(groups(list(layers), most)), unit="groups") as advance:
        return blame(layers, attempt, advance, in_hope=in_hope, most=most)


def _relieved(decider: Decider, quantized: Quantized, judges: Collection[str], reporter: Reporter) -> dict[str, str]:
    """Cheap arithmetic, Concats of one scale, or tails, that cost the result much in integers, with the reasons."""
    plan, (most, samples), model = quantized.plan, _extent(decider), decider.model
    if decider.target.by_cost:
        budget = sum(decider.costs(plan).values())
        tried = {CHEAP: cheap_in_float(model, plan, decider.target, decider.sizes, budget)}
    else:
        concats = crowded_concats(model, plan, quantized.qparams, decider.statistics)
        tried = {TIED: [(name,) for name in concats], AMPLIFIED: amplified_tails(model, plan, decider.target)}
    tried = {cause: pieces for cause, pieces in tried.items() if pieces}
    reasons: dict[str, str] = {}
    if not tried or not samples:
        return reasons
    measured = _measure(decider, quantized, decider.without, samples, judges)

    def measure(kept: Iterable[str]) -> dict[str, float]:
        return measured({*reasons, *kept})

    for cause, pieces in tried.items():
        total = len(groups([p[0] for p in pieces], most))
        with reporter.phase(_STEP, total=total, unit="groups") as advance:
            reasons.update(costly_in_integers(pieces, measure, advance, most=most, cause=cause))
    return reasons


def _too_narrow(
    decider: Decider, quantized: Quantized, judges: Collection[str], raised: Raised, reporter: Reporter
) -> tuple[ir.Model, dict[str, str]]:
    """The model at an opset with 16-bit weights, and the layers whose stored weights cost much in 8, with reasons."""
    pieces, (most, samples) = stored_together(quantized.plan), _extent(decider)
    model = raised(decider.model) if pieces and samples else None
    if model is None:
        return decider.model, {}
    wider = decider.at(model)
    measure = _measure(decider, wider.with_wide(()), wider.with_wide, samples, judges)
    with reporter.phase(_STEP, total=len(groups([p[0] for p in pieces], most)), unit="groups") as advance:
        return model, costly_in_integers(pieces, measure, advance, most=most, cause=NARROW)


def _rescued(decider: Decider, quantized: Quantized, judges: Collection[str], reporter: Reporter) -> dict[str, str]:
    """The layers to blame for a poor result, with the reasons."""
    records, rest = blame_layers(decider, quantized, reporter, judges=judges, in_hope=True)
    by_node = {name: record for record in records for name in record.nodes}
    reasons = {}
    for name in to_keep_float(records, rest):
        record = by_node[name]
        alone = "quantized alone" if len(record.nodes) == 1 else "quantized alone with the layers around it,"
        left = -10 * math.log10(record.noise) if record.noise > 0 else math.inf
        reasons[name] = f"{alone} it leaves {left:.0f} dB at the outputs"
    return reasons


def _may_store(decider: Decider, reasons: Mapping[str, str], judges: Collection[str]) -> bool:
    """Whether layers to keep float may have their weights stored as integers: it was their inputs that hurt."""
    if not decider.target.stores_weights:
        return False
    samples = _extent(decider)[1]
    louder = lifts(samples, decider.statistics)

    def score(store: bool) -> float:
        try:
            session = simulation(decider.again(reasons, store=store)[0], **decider.runtime)
            errors = errors_of(session.run, ((sample.feeds, sample.outputs) for sample in samples))
        except ExecutionError:
            return -math.inf
        return _worst(errors, louder, judges)

    return score(True) > score(False) - _WORTH


def _measure(
    decider: Decider,
    base: Quantized,
    changed: Callable[[Iterable[str]], Quantized],
    samples: Sequence[KeptSample],
    judges: Collection[str] | None,
) -> Callable[[Iterable[str]], dict[str, float]]:
    """Nodes → SQNR in dB of each float output that counts with these changed; empty where the model does not run."""
    fuse, louder = not base.is_simulated, lifts(samples, decider.statistics)
    variants = Variants(base.simulated(), samples, fuse_quantizers=fuse, **decider.runtime)

    def measure(nodes: Iterable[str]) -> dict[str, float]:
        found = variants.outputs(changed(nodes).simulated())
        return judged({name: db for name, db in found.items() if judges is None or name in judges}, louder)

    return measure


def _extent(decider: Decider) -> tuple[int, Sequence[KeptSample]]:
    """Groups to measure, at most, and the samples to do so on."""
    macs = sum(multiply_accumulates(node, decider.sizes) for node in all_nodes(decider.model))
    most, count = extent(macs, decider.statistics.samples)
    return most, spread(decider.samples, count)


def _worst(outputs: Mapping[str, Errors], louder: Mapping[str, float], judges: Collection[str]) -> float:
    """SQNR in dB of the worst of the outputs that count."""
    known = {name: errors.level for name, errors in outputs.items() if name in judges}
    return min(judged(known, louder).values(), default=math.inf)
