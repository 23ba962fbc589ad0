"""What a user of a finished result might try next: where most of the arithmetic runs otherwise than it could."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.console.terminal import listed, plural
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.planning.macs import multiply_accumulates
from onnxq.planning.rows import row
from onnxq.qparams import QParams

__all__ = ["few_bits", "hints"]

_LEARNERS = ("gptq", "adaround", "adaquant", "reconstruct")
"""Algorithms that learn from data which way a weight is rounded."""

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
    needs = _needs(plan, target)
    kept = {k.node: k.op for k in plan.kept_float if target.stored_because.get(k.op) == k.reason}
    if not kept:
        return needs
    total, of_op = 0, Counter[str]()
    for node in all_nodes(model):
        rule = row(target, node)
        if rule is not None and rule.kind in (Kind.COMPUTE, Kind.WEIGHT_ONLY):
            macs = multiply_accumulates(node, sizes)
            total += macs
            of_op[kept.get(node.name or "", "")] += macs
    number = Counter(kept.values())
    return needs + tuple(
        f"{number[op]} {op}, {of_op[op] / total:.0%} of the arithmetic: {target.stored_because[op]}"
        for op in number
        if of_op[op] >= _MUCH * total > 0
    )


def _needs(plan: Plan, target: Backend) -> tuple[str, ...]:
    """A sentence with the first few nodes that stay float, where the target needs something for such."""
    own = {name.partition(":")[0] for name in target.rules}  # others run elsewhere, or nowhere
    names = [kept.node for kept in plan.kept_float if kept.op in own]
    if not (names and target.float_needs):
        return ()
    return (f"{listed(names, _NAMED)} {'stays' if len(names) == 1 else 'stay'} float: {target.float_needs}",)


def few_bits(plan: Plan, qparams: Mapping[str, QParams], recipe: Sequence[str]) -> tuple[str, ...]:
    """A sentence on weights of fewer than 8 bits that were rounded to the nearest step: learning the rounding from data
    is worth several dB there (GPTQ: Frantar et al. 2022).

    Args:
        plan: where the model is quantized.
        qparams: with which numbers.
        recipe: how they were made, see :class:`onnxq.quantized.Quantized`.
    """
    if any(step.partition(":")[0] in _LEARNERS for step in recipe):
        return ()
    few = [qparams[site.name].spec.bits for site in plan.sites if site.role == "weight" and site.name in qparams]
    few = [bits for bits in few if bits < 8]
    if not few:
        return ()
    bits = " or ".join(str(bits) for bits in sorted(set(few)))
    return (
        f"{plural(len(few), 'weight')} of {bits} bits, rounded to the nearest step: "
        "--algorithm gptq:prefix=true --algorithm bias_correction learns the rounding from the data",
    )
