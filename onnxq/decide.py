"""What the data decides: the plan that it allows, biases corrected, and the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.algorithms.bias_correction import correct_biases
from onnxq.amplifiers import noise_amplifiers
from onnxq.backend import Backend
from onnxq.calibration.statistics import Statistics
from onnxq.graph.shapes import sizes_at
from onnxq.numbers import choose_numbers, unusable_constants, unusable_tensors
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planner import make_plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized

__all__ = ["decide"]

_ROUNDS = 3
"""How often noise is looked for again after nodes were kept float."""
_LARGEST_SHARE = 0.5
"""Largest share of the quantized nodes' cost that may be kept float because of amplified noise."""


@dataclass(slots=True)
class _Attempt:
    model: ir.Model
    plan: Plan
    numbers: dict[str, QParams]
    corrected: int


def decide(
    model: ir.Model, target: Backend, options: Options, statistics: Statistics, version: str
) -> tuple[Quantized, list[str]]:
    """Plan a model with what the data shows of it.

    Nodes stay float that read or write a tensor without usable values, and nodes whose noise float arithmetic behind
    them amplifies, unless that is most of the model.

    Args:
        model: normalized float model; left unchanged.
        target: the backend.
        options: bits, ranges and so on.
        statistics: of this model.
        version: of onnxq, written into the result.

    Returns:
        The quantized model, not yet verified, and notes on what was decided.
    """
    samples = statistics.kept
    sizes = sizes_at(model, {name: a.shape for name, a in samples[0].feeds.items()}) if samples else {}
    keep: dict[str, str] = {}
    notes: list[str] = []
    attempt = _attempt(model, target, options, statistics, keep, sizes)
    for _ in range(_ROUNDS):
        quantized = _quantized(attempt, target, options, version)
        if options.placement == "all" or not attempt.plan.quantized:
            break
        noisy = noise_amplifiers(
            attempt.model,
            quantized.rendered(),
            attempt.plan,
            samples,
            providers=options.providers,
            custom_op_library=options.custom_op_library,
        )
        if not noisy:
            break
        share = _share(model, attempt.plan, noisy, target, sizes)
        if share > _LARGEST_SHARE:
            notes.append(f"{next(iter(noisy.values()))}; {share:.0%} of the quantized work stands before it: left as it is")
            break
        keep.update(noisy)
        attempt = _attempt(model, target, options, statistics, keep, sizes)
    if attempt.corrected:
        notes.append(f"bias_correction: {attempt.corrected} layers")
    return quantized, notes


def _attempt(
    model: ir.Model,
    target: Backend,
    options: Options,
    statistics: Statistics,
    keep: dict[str, str],
    sizes: Mapping[str, int],
) -> _Attempt:
    while True:
        plan = make_plan(model, target, options, keep_float=keep, sizes=sizes)
        bad = {**unusable_tensors(plan, statistics), **unusable_constants(model, plan)}
        more = _nodes_touching(model, plan, bad)
        if not more.keys() - keep.keys():
            break
        keep.update(more)
    numbers = choose_numbers(model, plan, statistics)
    corrected = 0
    if options.bias_correction and plan.quantized:
        model = model.clone()
        corrected = correct_biases(
            model,
            plan,
            numbers,
            statistics.kept,
            providers=options.providers,
            custom_op_library=options.custom_op_library,
        )
        numbers = choose_numbers(model, plan, statistics) if corrected else numbers
    return _Attempt(model, plan, numbers, corrected)


def _quantized(attempt: _Attempt, target: Backend, options: Options, version: str) -> Quantized:
    return Quantized(attempt.model, attempt.plan, attempt.numbers, target, format=options.format, version=version)


def _share(
    model: ir.Model, plan: Plan, names: Mapping[str, str], target: Backend, sizes: Mapping[str, int]
) -> float:
    """Share of the float cost of the quantized nodes that the named ones have."""
    total = part = 0.0
    for node in model.graph.all_nodes():
        if node.name in plan.quantized and (rule := target.rules.get(node.op_type)) is not None:
            cost = rule.costs(node)[0] * sizes.get(node.outputs[0].name or "", 1)
            total += cost
            part += cost if node.name in names else 0.0
    return part / total if total else 0.0


def _nodes_touching(model: ir.Model, plan: Plan, bad: Mapping[str, str]) -> dict[str, str]:
    """Quantized nodes that read or write an unusable tensor, with the reason."""
    if not bad:
        return {}
    bad = {**bad, **{site.tensor: bad[site.source] for site in plan.sites if site.source in bad}}
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        if node.name in plan.quantized or node.name in plan.absorbed:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name in bad and node.name:
                    found.setdefault(plan.absorbed.get(node.name, node.name), bad[value.name])
    return found
