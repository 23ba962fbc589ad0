"""What the options ask of weights in so many words and the target's table has not."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.console.terminal import counts
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import rank_of
from onnxq.options import Options
from onnxq.options.override import Override
from onnxq.options.selection import Selection
from onnxq.plan import Plan
from onnxq.planning.table_rows import weight_row
from onnxq.spec import PerTensor

__all__ = ["unmet"]


def unmet(model: ir.Model, plan: Plan, target: Backend, options: Options) -> Iterator[str]:
    """Warnings of a result, as sentences: scales per channel, widths and zero points that weights cannot have.

    Args:
        model: the float model that was planned.
        plan: where it is quantized.
        target: its rows say what there is.
        options: what was asked for, overrides included; what they leave to the target is not looked at.
    """
    places: tuple[Options | Override, ...] = (options, *(change for _, change in options.override))
    if not any(o.per_channel or o.weight_bits or o.weight_symmetric is False for o in places):
        return
    nodes = tuple(all_nodes(model))
    selection = Selection(model, nodes, options)
    by_name = {node.name or "": node for node in nodes}
    one: list[str] = []
    widths: dict[tuple[int, int], list[str]] = {}
    middle: dict[int, list[str]] = {}
    for site in plan.sites:
        found = weight_row(target, site, by_name)
        if found is None:
            continue
        node, value, rule = found
        alone = isinstance(site.spec.granularity, PerTensor) and (rank_of(value) or 0) > 1
        if alone and selection.per_channel(options.per_channel is True, node, value):
            one.append(node.op_type)
        bits = selection.weight_bits(node, value) or options.weight_bits
        if bits is not None and bits not in rule.weight_bits:
            widths.setdefault((bits, site.spec.bits), []).append(node.op_type)
        if site.spec.symmetric and selection.weight_symmetric(options.weight_symmetric, node, value) is False:
            middle.setdefault(site.spec.bits, []).append(node.op_type)
    if one:
        yield f"the weights of {counts(one)} have one scale per tensor: {target.name} cannot have one per channel"
    for (bits, has), ops in widths.items():
        yield f"the weights of {counts(ops)} have {has} bits: {target.name} cannot have {bits} for them"
    for has, ops in middle.items():
        yield f"the weights of {counts(ops)} have no zero points: {target.name} has none for them in {has} bits"
