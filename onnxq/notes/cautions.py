"""What a user should be told of a finished result: that it is poor, no quantized model, or tried on little."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from onnxq.backend_choice import backend_named
from onnxq.calibration.roles import few, samples_to_verify
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.terminal import bytes_text, counts, decibels, listed
from onnxq.effort import learns
from onnxq.for_processor import reduces
from onnxq.measuring.joined import hidden
from onnxq.measuring.judging import lifts
from onnxq.measuring.metrics import kept_signal
from onnxq.measuring.verification import Verification
from onnxq.notes.commands import COMPARE
from onnxq.notes.other_shapes import other_shapes
from onnxq.notes.reasons import LOST, by_reason, to_exclude
from onnxq.options import Options, Placement
from onnxq.ort.overflow import products_overflow
from onnxq.plan import Plan
from onnxq.planning.weightless import ALREADY

__all__ = ["below", "came_quantized", "cautions", "poor", "slow", "slower_than_float", "vague"]

_HEAVY = ("Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
"""What people quantize a model for."""
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_OF_DECODERS = (
    "Large products of few rows, as where a decoder generates token by token, may be faster with --algorithm dynamic, "
    "and with --algorithm weight_only:bits=4,format=matmulnbits at some loss"
)
"""One and four rows of 1024 x 2816 without VNNI: 3.9 to 2.9 times as fast as float in blocks of 4 bits."""
_SLOW, _LONG = 0.85, 1e-4
"""Of the float model's speed, below which it is worth a warning; seconds that a model must take for that to matter."""
_VAGUE = 2.5
"""dB that a figure may be off by for the samples it is of, by its standard error, before that is said."""
_EXACT = 100.0
"""dB from which on an error is rounding in float32, whatever it is."""
_FAINT, _UNSURE = 10.0, 20.0
"""dB that an output is louder over all the data than in the samples compared, from which on an SQNR below 20 dB may be
that of nothing."""
_SHOWN = 3
"""Outputs that a warning names."""
_LARGE = 1 << 20
"""Bytes from which on a result larger than the model is worth a warning: quantizers take some of a small one."""


def cautions(
    plan: Plan,
    verification: Verification,
    options: Options,
    statistics: Statistics,
    *,
    packed: bool = True,
    whole: Container[str] = (),
    compare: str = COMPARE,
) -> Iterator[str]:
    """Warnings of a result, as sentences.

    Args:
        plan: where it is quantized.
        verification: what running it showed.
        options: the floor.
        statistics: of the calibration data.
        packed: weights are stored as integers; else the artifact is as large as the float model by design.
        whole: nodes whose table is not unpacked row by row, see :mod:`onnxq.notes.tables`.
        compare: the command that compares the artifact with the float model, see :mod:`onnxq.notes.commands`.
    """
    verified = samples_to_verify(statistics.kept, learns(options))
    yield from _little_tried(verified, verification, statistics, compare)
    yield from _little_quantized(plan, options)
    late = {name: op for name, op in plan.stored.items() if name not in whole}
    yield from slower_than_float(plan.quantized, late, verification, options.placement)
    if packed:
        yield from _larger_than_given(plan, verification)
    yield from _next_to_nothing(verified, verification, statistics)
    yield from other_shapes(verification.outputs)
    yield from vague(verification, statistics.samples, compare)
    yield from poor(verification, options, compare)


def _little_tried(
    verified: Sequence[KeptSample], verification: Verification, statistics: Statistics, compare: str
) -> Iterator[str]:
    """That no sample was compared, or only those by which something was decided."""
    samples, kept = statistics.samples, statistics.kept
    if samples and not kept:
        nan = any(tensor.nan for tensor in statistics.tensors.values())
        why = "the float model makes a NaN of every sample" if nan else "no sample could be held back"
        yield f"{why}: the result was not compared with the float model"
    decided = few(kept)
    if verification.samples and len(kept) < samples and any(sample in decided for sample in verified):
        yield (
            f"the figures are of {len(verified)} of {samples} samples, by which it was also decided what is quantized: "
            f"no more are held back, and what others give may be worse. {compare} runs them all"
        )


def _little_quantized(plan: Plan, options: Options) -> Iterator[str]:
    """That the model came quantized, or that nothing could be."""
    already = came_quantized(plan)
    if already:
        more = "'onnxq deploy' writes one whose activations have scales for a target, 'onnxq finetune' trains it"
        yield f"{already}; {more}"
    elif not plan.quantized:
        stored = f", except for the weights of {counts(plan.stored.values())}" if plan.stored else ""
        yield f"nothing was quantized: the result is the float model{stored}{_main_reason(plan, options)}"


def came_quantized(plan: Plan) -> str:
    """What to say of a model given that has nodes in integers already; nothing of any other."""
    already = [kept.op for kept in plan.kept_float if kept.reason == ALREADY]
    return (
        f"the model given is quantized already, and {counts(already)} stay as they are. Give the float model"
        if already
        else ""
    )


def _main_reason(plan: Plan, options: Options) -> str:
    """Why nothing was quantized: what the data showed, or else what keeps most of the heavy nodes float."""
    reasons = sorted(
        by_reason(plan.kept_float),
        key=lambda found: (not found[0].startswith(LOST), -sum(k.op in _HEAVY for k in found[1])),
    )
    if not reasons:
        return ""
    reason, nodes = reasons[0]
    why = f"; {counts(k.op for k in nodes)}: {reason}"
    if reason.startswith("slower") and options.placement == "auto":
        all_the_same = "--placement all quantizes what can be all the same"
        target = backend_named(plan.backend)
        if reduces(target, options):
            why += f". --full-range is for a processor with VNNI, where they are faster; {all_the_same}"
        else:
            why += f". {all_the_same}, for a processor where it is not"
        heavy = Counter(k.op in _PRODUCTS for k in nodes if k.op in _HEAVY)
        if target.at_home and not options.providers and heavy[True] > heavy[False]:
            why += f". {_OF_DECODERS}"
    return why


def _larger_than_given(plan: Plan, verification: Verification) -> Iterator[str]:
    """That the file did not become smaller; of a model that came quantized nothing is expected."""
    if verification.quantized_bytes > verification.float_bytes >= _LARGE and not came_quantized(plan):
        before, after = bytes_text(verification.float_bytes), bytes_text(verification.quantized_bytes)
        than = f"larger than the model given, {before} → {after}" if before != after else f"as large as before, {after}"
        yield f"the file is {than}: too little of it is stored in 8 bits"


def _next_to_nothing(
    verified: Sequence[KeptSample], verification: Verification, statistics: Statistics
) -> Iterator[str]:
    """Outputs whose SQNR is that of samples much quieter than the data."""
    unsure = {name for name, errors in verification.outputs.items() if errors.sqnr < _UNSURE}
    louder = lifts(verified, statistics) if unsure else {}
    for name in verification.outputs:
        if name in unsure and louder.get(name, 0.0) >= _FAINT:
            below = f"{louder[name]:.0f} dB below all the data" if louder[name] < math.inf else "all zero"
            yield f"output {name!r} is next to nothing in the samples compared ({below}): its SQNR says little"


def slower_than_float(
    quantized: Mapping[str, str],
    stored: Mapping[str, str],
    verification: Verification,
    placement: Placement = "auto",
) -> Iterator[str]:
    """A warning where a result was measured slower than the float model, by what may cost that.

    Args:
        quantized: node → operator of what runs in integers.
        stored: node → operator of what computes in float with weights stored as integers.
        verification: what running a result showed.
        placement: that was asked for.
    """
    causes, ways_out = [], []
    if quantized:
        little = "integers gain little on this processor (x86 without VNNI), and conversions cost"
        causes.append(little if products_overflow() else "conversions cost more than integers gain")
        by_cost = "without --placement all, what gains nothing stays float"
        ways_out.append(by_cost if placement == "all" else to_exclude(Counter(quantized.values())))
    if "Gather" in stored.values():
        causes.append("rows of a table are unpacked as they are read")
        ways_out.append("--exclude Gather leaves tables in float")
    if causes:
        yield from slow(verification, f"{', and '.join(causes)}. {', '.join(ways_out)}")


def slow(verification: Verification, why: str) -> Iterator[str]:
    """A warning where a result was measured slower than the float model, on the typical sample or on a larger one.

    Args:
        verification: what running a result showed.
        why: the reason and what to do about it.
    """
    other = verification.other_size
    for seen in (verification, other):
        if seen is None or seen.speedup is None or seen.float_seconds is None:
            continue
        if seen.speedup < _SLOW and seen.float_seconds > _LONG:
            took = f"{1000 * seen.float_seconds:.1f} ms", "one thread"
            place = f"on {other.where_with(*took)}" if other is not None and seen is other else f"({', '.join(took)})"
            yield f"it runs at {seen.speedup:.2f} of the float model's speed here {place}: {why}"
            return


def vague(verification: Verification, samples: int | None, compare: str = COMPARE) -> Iterator[str]:
    """A warning where other samples would give another figure.

    Args:
        verification: what running a result showed.
        samples: how many there are; None where nobody knows.
        compare: as for :func:`cautions`.
    """
    if samples is not None and verification.samples >= samples:
        return
    figures = verification.outputs.items()
    unsure = [name for name, errors in figures if errors.uncertainty > _VAGUE and errors.sqnr < _EXACT]
    if unsure:
        some = f"{verification.samples} samples" if samples is None else f"{verification.samples} of {samples}"
        named = listed([repr(name) for name in unsure], _SHOWN)
        which = f"output {named} differs" if len(unsure) == 1 else f"outputs {named} differ"
        yield f"{which} much from sample to sample, and these figures are of {some}: {compare} runs them all"


def below(output: str, sqnr: float, floor: float, compare: str = COMPARE) -> str:
    """The warning of a result below the floor.

    Args:
        output: the worst one.
        sqnr: its SQNR in dB.
        floor: what was asked for, in dB.
        compare: as for :func:`cautions`.
    """
    return f"output {output!r} has {decibels(sqnr)}, below the floor of {floor:g} dB: {compare} shows where it is lost"


def poor(verification: Verification, options: Options, compare: str = COMPARE) -> Iterator[str]:
    """A warning where a result is below the floor, or what varies in it is."""
    worst, floor = verification.worst, options.min_sqnr
    if worst is not None and worst[1].sqnr < floor:
        yield below(worst[0], worst[1].sqnr, floor, compare)
    figures = verification.outputs.items()
    hiding = {name: errors for name, errors in figures if kept_signal(errors) < floor <= errors.sqnr}
    if hiding:
        name, errors = min(hiding.items(), key=lambda item: kept_signal(item[1]))
        more = f" ({len(hiding) - 1} more outputs alike)" if len(hiding) > 1 else ""
        yield (
            f"output {name!r} has {errors.sqnr:.1f} dB, but {errors.sqnr_centred:.1f} dB with its mean removed, below "
            f"the floor of {floor:g} dB{more}: a constant part hides what is lost of the rest, and {compare} shows "
            "where"
        )
    for name, branches in verification.branches.items():
        worst_branch = hidden(verification.outputs[name], branches)
        if worst_branch is not None and worst_branch[1].sqnr < floor <= verification.outputs[name].sqnr:
            yield (
                f"branch {worst_branch[0]!r} of output {name!r} has {decibels(worst_branch[1].sqnr)}, below the floor "
                f"of {floor:g} dB: the rest of the output, of larger numbers, hides it, and {compare} shows where it "
                "is lost"
            )
