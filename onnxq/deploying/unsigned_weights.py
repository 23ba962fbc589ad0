"""Weights that a processor multiplies exactly as uint8 alone: with int8 its sums of products overflow.

Numbers that are given have no range to be reduced, as :mod:`onnxq.calibration.reduced` does where they are chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.calibration.reduced import overflows
from onnxq.console.terminal import plural
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Plan, Site
from onnxq.qparams import QParams, quantize
from onnxq.quantized import Quantized
from onnxq.spec import USUAL_BITS, Scheme

__all__ = ["overflowing", "overflowing_weights", "unsigned_weights", "without_sign"]


def unsigned_weights(model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> set[str]:
    """The sites of weights whose sums overflow, that are to have the same grid without sign.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: by site name.
    """
    constants = all_constants(model)
    nodes = {node.name or "": node for node in all_nodes(model)}
    # without sign they would be unpacked at every run, or stored twice
    read_in_float = {site.tensor for site in plan.sites if any(edge.node in plan.stored for edge in site.readers)}
    found = set()
    for site in plan.sites:
        given, array = numbers.get(site.name), constant_array(constants.get(site.tensor))
        if given is None or array is None or not _is_int8(site, given) or site.tensor in read_in_float:
            continue
        readers = [nodes[edge.node] for edge in site.readers]
        integers = quantize(array, given).astype(np.float32)
        if any(overflows(reader, integers, given.zero_point) for reader in readers):
            found.add(site.name)
    return found


def overflowing_weights(quantized: Quantized) -> list[str]:
    """The tensors of weights in int8 whose sums of products with activations of 8 bits may overflow."""
    plan, numbers = quantized.plan, quantized.qparams
    found = unsigned_weights(quantized.model, plan, numbers)
    narrow = {
        edge.node
        for site in plan.sites
        if site.role == "activation" and site.name in numbers and numbers[site.name].spec.bits == USUAL_BITS
        for edge in site.readers
    }
    return [s.tensor for s in plan.sites if s.name in found and any(edge.node in narrow for edge in s.readers)]


def overflowing(weights: Sequence[str]) -> list[str]:
    """What to say of them where a runtime loses more than the simulation; nothing where there are none."""
    if not weights:
        return []
    some = f"weight {weights[0]!r}" + (f" and {plural(len(weights) - 1, 'other')}" if len(weights) > 1 else "")
    return [
        f"this processor (x86 without VNNI) cuts off sums of 8-bit products where they overflow, as with {some}: that "
        "may be why more is lost than in simulation. 'onnxq quantize' leaves room for the sums, 'onnxq deploy' stores "
        "such weights as uint8"
    ]


def without_sign(weights: Collection[str]) -> list[str]:
    """What to say of weights that became so; nothing where there are none."""
    if not weights:
        return []
    are = "is" if len(weights) == 1 else "are"
    return [
        f"deploy: {plural(len(weights), 'weight')} {are} uint8: x86 processors without VNNI cut off sums of products "
        "with int8; --full-range where it is to run on another kind, which is faster with int8"
    ]


def _is_int8(site: Site, given: QParams) -> bool:
    spec = given.spec
    return site.role == "weight" and spec.scheme is Scheme.UNIFORM and spec.signed and spec.bits == USUAL_BITS
