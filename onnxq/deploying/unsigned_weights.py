"""Weights that a processor multiplies exactly as uint8 alone: with int8 its sums of products overflow.

Numbers that are given have no range to be reduced, as :mod:`onnxq.calibration.reduced` does where they are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.reduced import overflows
from onnxq.console.terminal import plural
from onnxq.graph.known import once
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Plan, Site
from onnxq.qparams import QParams, quantize
from onnxq.spec import USUAL_BITS, Scheme

__all__ = ["stored_without_sign", "unsigned_weights"]


def unsigned_weights(model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> dict[str, QParams]:
    """The numbers of the weights whose sums overflow, by site name, on the same grid without sign.

    Args:
        model: the model of the plan.
        plan: the plan.
        numbers: by site name.
    """
    constants = all_constants(model)
    nodes = {node.name or "": node for node in all_nodes(model)}
    found = {}
    for site in plan.sites:
        given, value = numbers.get(site.name), constants.get(site.tensor)
        array = constant_array(value) if value is not None else None
        if given is None or array is None or value is None or not _is_int8(site, given):
            continue
        for reader in (nodes[edge.node] for edge in site.readers if edge.node not in plan.stored):
            question = "overflows", given.spec, given.scale.tobytes(), given.zero_point.tobytes(), reader.name
            if once(value, question, partial(_overflows, reader, array, given)):
                found[site.name] = _without_sign(given)
                break
    return found


def stored_without_sign(plan: Plan) -> list[str]:
    """What to say of them; nothing where a plan has none."""
    count = sum(site.role == "weight" and not site.spec.signed for site in plan.sites)
    if not count:
        return []
    return [
        f"deploy: {plural(count, 'weight')} stored as uint8: x86 processors without VNNI cut off sums of products with "
        "int8; --full-range where it is to run on another kind, which is faster with int8"
    ]


def _is_int8(site: Site, given: QParams) -> bool:
    spec = given.spec
    return site.role == "weight" and spec.scheme is Scheme.UNIFORM and spec.signed and spec.bits == USUAL_BITS


def _overflows(reader: ir.Node, array: NDArray[np.floating], given: QParams) -> bool:
    """Whether sums may overflow; with several zero points a depthwise convolution has another kernel, whose may."""
    several = given.zero_point.size > 1 and bool((given.zero_point != given.zero_point.flat[0]).any())
    return several or overflows(reader, quantize(array, given).astype(np.float32), given.spec)


def _without_sign(given: QParams) -> QParams:
    spec = replace(given.spec, signed=False, narrow_range=False)
    return QParams(spec, given.scale, given.zero_point + (1 << (spec.bits - 1)))
