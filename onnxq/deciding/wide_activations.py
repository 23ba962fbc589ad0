"""Activations of 16 bits where 8 are too few, on a target that has both and no float in between.

Where single layers hurt, float is no way out for them there. Nor are 16 bits for these alone: each boundary is a
conversion, and the HTP emulator computed a graph of both widths (Magika's) wrongly as a whole, -0.2 dB from the
simulation, though each of its layers alone is at 65 dB or more; the same graph all in 16 bits is at 58 dB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.op_rule import ANY_BITS
from onnxq.options import Options, Override
from onnxq.plan import Plan
from onnxq.planning.table_rows import row
from onnxq.spec import WIDE, WIDE_OPSET

__all__ = ["all_wide", "has_wide", "some_wide", "widens"]


def has_wide(target: Backend) -> bool:
    """Whether a target has activations of 16 bits besides those that it has by default."""
    return WIDE in target.act_bits and target.activation.bits < WIDE


def widens(target: Backend) -> bool:
    """Whether a poor result may be made in 16 bits: not where any width can be asked for, for experiments."""
    return has_wide(target) and not target.mixes and target.act_bits != ANY_BITS


def all_wide(model: ir.Model, plan: Plan, target: Backend, options: Options) -> Options | None:
    """The options with 16 bits for what all nodes read and write that have them; None where that cannot be had.

    Args:
        model: the float model.
        plan: where it is quantized.
        target: the backend.
        options: what the user asked for; a width of activations among it is left as it is.
    """
    if not widens(target) or not _may_widen(model, target, options):
        return None
    narrow = []
    for node in model.graph.all_nodes():
        rule = row(target, node) if node.name and node.name in plan.quantized else None
        if rule is not None and WIDE not in rule.act_bits:
            narrow.append((f"node:{node.name}", Override(act_bits=target.activation.bits)))
    return replace(options, act_bits=WIDE, override=(*options.override, *narrow))


def some_wide(model: ir.Model, target: Backend, options: Options, nodes: Iterable[str]) -> Options | None:
    """The options with some nodes in 16 bits; None where that cannot be had.

    Args:
        model: the float model.
        target: the backend.
        options: what the user asked for; a width of activations among it is left as it is.
        nodes: names; those that an override names are left as they are.
    """
    if not _may_widen(model, target, options):
        return None
    named = {pattern for pattern, _ in options.override}
    patterns = [f"node:{name}" for name in dict.fromkeys(nodes) if name not in named]
    override = (*options.override, *((pattern, Override(act_bits=WIDE)) for pattern in patterns))
    return replace(options, override=override) if patterns else None


def _may_widen(model: ir.Model, target: Backend, options: Options) -> bool:
    if options.act_bits is not None or not has_wide(target):
        return False
    packed = target.format_named(options.format).integers
    return not packed or bool(target.wide_domain) or model.opset_imports.get("", 0) >= WIDE_OPSET
