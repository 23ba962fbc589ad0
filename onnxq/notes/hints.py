"""What a user of a finished result might try next: where most of the arithmetic runs otherwise than it could."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxq.algorithms import rotate
from onnxq.backend import Backend, Kind
from onnxq.console.terminal import decibels, listed, plural
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.measuring.verification import Verification
from onnxq.notes.commands import WIDE_ACTIVATIONS
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.macs import multiply_accumulates
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.rewritten import HOME
from onnxq.spec import USUAL_BITS, PerTensor

__all__ = ["coarser_weights", "few_bits", "hints", "low", "ways_out"]

_LEARNERS = ("gptq", "adaround", "adaquant", "reconstruct")
"""Algorithms that learn from data which way a weight is rounded."""

_MIXED = "mixed_precision"
"""Algorithm that gives layers more bits."""
_LOW = 20.0
"""dB of the worst output, below which a user is told what may give more."""
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_LOW_SAMPLE = 30.0
"""dB of its worst sample, below which ranges taken at each run may fit better than one for all: of eleven transformers
the five below gained 0 to 11 dB by them, 5 in the mean, the six above -2 to 1. Smoothing gained 0 to 3 dB on nine, 1.6
in the mean, at the same speed, and more in their worst samples."""
_HAS = "output {!r} has {}: "
_NAMED = 4
_MUCH = 0.5
"""Share of the multiply-accumulates from which on a reason is worth a line of its own."""


def hints(model: ir.Model, plan: Plan, target: Backend, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """What to say of nodes that stay float: what the target needs for them, and of layers that do most of a model's
    arithmetic, where its table says why.

    Args:
        model: the float model that was planned.
        plan: where it is quantized.
        target: see ``Backend.float_needs``; its rows give the reasons, see ``Backend.stored_because``.
        sizes: tensor name → number of elements, where data has shown it; else the shapes in the model are used.
    """
    needs = _needs(model, plan, target)
    kept = {k.node: k.op for k in plan.kept_float if target.stored_because.get(k.op) == k.reason}
    if not kept:
        return needs
    of_op = Counter[str]()
    for node, macs in _arithmetic(model, target, sizes):
        of_op[kept.get(node.name or "", "")] += macs
    total = of_op.total()
    number = Counter(kept.values())
    return needs + tuple(
        f"{number[op]} {op}, {of_op[op] / total:.0%} of the arithmetic: {target.stored_because[op]}"
        for op in number
        if of_op[op] >= _MUCH * total > 0
    )


def low(
    model: ir.Model,
    plan: Plan,
    verification: Verification,
    target: Backend,
    options: Options,
    sizes: Mapping[str, int],
    recipe: Sequence[str] = (),
) -> tuple[str, ...]:
    """A sentence on a result below 20 dB, or below the floor, or with a poor sample where ranges of each run may fit it
    better: what may give more.

    Args:
        model: the float model that was planned.
        plan: where the result is quantized.
        verification: of the result.
        target: whose activations may have 16 bits; matrix products can take ranges at each run where it is onnxruntime.
        options: how it was made.
        sizes: tensor name → number of elements, where data has shown it; else the shapes in the model are used.
        recipe: how its numbers were made, see :class:`onnxq.quantized.Quantized`.
    """
    if verification.worst is None:
        return ()
    name, errors = verification.worst
    poor = errors.sqnr < max(_LOW, options.min_sqnr)
    sampled = math.isfinite(errors.worst) and errors.worst < _LOW_SAMPLE and target.at_home
    sampled &= not _PRODUCTS.isdisjoint(plan.quantized.values()) and (options.weight_bits or 8) >= 8
    ways = []
    eight = (options.act_bits or target.activation.bits) == USUAL_BITS
    if poor and not target.at_home and 16 in target.act_bits and eight and not coarser_weights(plan):
        ways.append(f"{WIDE_ACTIVATIONS} gives activations finer steps")
    if poor and _one_scale(plan, target, options):
        ways.append("--per-channel gives each output channel of a weight a scale of its own")
    if (poor or sampled) and not options.algorithms and _products(model, plan, target, sizes):
        ways += _of_products(target, options, recipe)
    if poor and (way := _beyond_rounding(target, options)):
        ways.append(way)
    if poor and options.effort != "best" and not options.algorithms:
        ways.append("--effort best tries range methods and algorithms")
    has = decibels(errors.sqnr) if poor else f"{errors.worst:.1f} dB in sample {errors.worst_sample}"
    return (_HAS.format(name, has) + "; ".join(ways),) if ways else ()


def ways_out(texts: Iterable[str], output: str, sqnr: float) -> dict[str, str]:
    """Of the hints of a result that of :func:`low`, to what it says but for the level.

    Args:
        texts: the hints.
        output: the worst output.
        sqnr: its SQNR in dB.
    """
    has = _HAS.format(output, decibels(sqnr))
    return {text: text.removeprefix(has) for text in texts if text.startswith(has)}


def coarser_weights(plan: Plan) -> bool:
    """Whether some weight has fewer bits than activations have: finer steps of these then change next to nothing."""
    bits = {role: [site.spec.bits for site in plan.sites if site.role == role] for role in ("weight", "activation")}
    return min(bits["weight"], default=USUAL_BITS) < min(bits["activation"], default=0)


def _one_scale(plan: Plan, target: Backend, options: Options) -> bool:
    """Whether weights have one scale each by the target's default alone, and could have one for each channel."""
    asked = (options.per_channel, *(change.per_channel for _, change in options.override))
    if target.per_channel or any(wanted is not None for wanted in asked):
        return False
    by_channel = {rule.op for rule in target.rules.values() if rule.weight_axis is not None}
    return any(
        site.role == "weight"
        and isinstance(site.spec.granularity, PerTensor)
        and any(plan.quantized.get(reader.node) in by_channel for reader in site.readers)
        for site in plan.sites
    )


def _of_products(target: Backend, options: Options, recipe: Sequence[str]) -> Iterator[str]:
    """What may give more where matrix products do most of the arithmetic."""
    if options.effort != "best" and (options.weight_bits or USUAL_BITS) >= USUAL_BITS:
        flags = _flags(recipe, "smoothquant")
        yield f"{flags} moves outliers of what matrix products read into their weights"
    if target.name == HOME:
        yield "--algorithm dynamic takes the ranges of what they read at each run"


def _beyond_rounding(target: Backend, options: Options) -> str:
    """What may give more where weights have few bits and their rounding is learned already; empty elsewhere."""
    names = {text.partition(":")[0].replace("-", "_") for text in options.algorithms}
    learned = bool(names.intersection(_LEARNERS)) or (options.effort == "best" and not names)
    few = options.weight_bits is not None and options.weight_bits < USUAL_BITS in target.weight_bits
    if not (learned and few) or _MIXED in names:
        return ""
    others = "" if names else " --algorithm gptq:prefix=true --algorithm bias_correction"
    flags = f"--algorithm {_MIXED}:budget=size:0.7{others}"
    return f"{flags} gives the layers that hurt most {USUAL_BITS} bits; onnxq finetune trains all of them"


def _products(model: ir.Model, plan: Plan, target: Backend, sizes: Mapping[str, int]) -> bool:
    """Whether most of the arithmetic that runs in integers is MatMuls and Gemms with constant weights."""
    of_op = Counter[bool]()
    for node, macs in _arithmetic(model, target, sizes):
        if node.name not in plan.quantized:
            continue
        of_op[node.op_type in _PRODUCTS and is_constant(node.inputs[1])] += macs
    return of_op[True] > _MUCH * of_op.total()


def _arithmetic(model: ir.Model, target: Backend, sizes: Mapping[str, int]) -> Iterator[tuple[ir.Node, int]]:
    """The layers that a target has rows for, with their multiply-accumulates."""
    for node in all_nodes(model):
        rule = row(target, node)
        if rule is not None and rule.kind in (Kind.COMPUTE, Kind.WEIGHT_ONLY):
            yield node, multiply_accumulates(node, sizes)


def _needs(model: ir.Model, plan: Plan, target: Backend) -> tuple[str, ...]:
    """A sentence with the first few nodes that stay float, where the target needs something for such."""
    if not target.float_needs:
        return ()
    own = {name.partition(":")[0] for name in target.rules}  # others run elsewhere, or nowhere
    nowhere = [finding.what for finding in target.lacks(model, Options())] if target.lacks is not None else []
    names = [
        kept.node
        for kept in plan.kept_float
        if kept.op in own and not any(what.startswith(kept.reason) for what in nowhere)
    ]
    if not names:
        return ()
    return (f"{listed(names, _NAMED)} {'stays' if len(names) == 1 else 'stay'} float: {target.float_needs}",)


def few_bits(plan: Plan, qparams: Mapping[str, QParams], recipe: Sequence[str]) -> tuple[str, ...]:
    """A sentence on weights of fewer than 8 bits that were rounded without data: learning the rounding from it is worth
    several dB there (GPTQ: Frantar et al. 2022).

    Args:
        plan: where the model is quantized.
        qparams: with which numbers.
        recipe: how they were made, see :class:`onnxq.quantized.Quantized`.
    """
    if any(step.partition(":")[0] in _LEARNERS for step in recipe):
        return ()
    few = [qparams[site.name].spec.bits for site in plan.sites if site.role == "weight" and site.name in qparams]
    few = [bits for bits in few if bits < USUAL_BITS]
    if not few:
        return ()
    bits = " or ".join(str(bits) for bits in sorted(set(few)))
    return (
        f"{plural(len(few), 'weight')} of {bits} bits, rounded without data: "
        f"{_flags(recipe, 'gptq:prefix=true')} learns the rounding from the data",
    )


def _flags(recipe: Sequence[str], algorithm: str) -> str:
    """An algorithm between those of the default that changed the float model, and its bias correction, as flags."""
    names = [*(step for step in recipe if step == rotate.NAME), algorithm, "bias_correction"]
    return " ".join(f"--algorithm {name}" for name in names)
