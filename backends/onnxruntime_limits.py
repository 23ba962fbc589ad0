"""Where onnxruntime 1.31's integer kernels fail or are wrong, and what is done about it."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_nodes

if TYPE_CHECKING:
    from onnxq.plan import Plan
    from onnxq.qparams import QParams

__all__ = ["adjust", "certain", "several"]

_POOL_RATIO = 250.0
"""Step of a mean's input over that of the mean, divided by the elements it is of: from 256 on the kernel refuses."""


def several(node: ir.Node) -> str | None:
    """onnxruntime 1.31's QLinearSoftmax gives 0 in place of 1 where there is one element to a row."""
    x = node.inputs[0]
    shape = x.shape if x is not None else None
    axis = node.attributes.get_int("axis", -1)
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    several = isinstance(size, int) and size > 1
    return None if several else "onnxruntime's integer kernel is wrong for rows of one element"


def certain(model: ir.Model) -> None:
    """Write a Softmax over rows of one element as a Hardmax, which gives 1 just as well.

    onnxruntime 1.31 fuses a Softmax between quantizers into a QLinearSoftmax, which gives 0 there.
    """
    for node in all_nodes(model):
        data = node.inputs[0] if node.op_type == "Softmax" and node.domain == "" else None
        if data is None or data.dtype is not ir.DataType.FLOAT:
            continue  # no Hardmax of other types, and no QLinearSoftmax either
        shape, axis = data.shape, node.attributes.get_int("axis", -1)
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1:
            node.op_type = "Hardmax"


def adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Widen the range of a mean over positions that is next to nothing beside what it is the mean of, in place.

    onnxruntime 1.31's QLinearGlobalAveragePool fails where the two steps are too far apart.
    """
    sites = {site.tensor: site.name for site in plan.sites if site.role == "activation"}
    for node in all_nodes(model):
        if node.op_type != "GlobalAveragePool" or node.inputs[0] is None:
            continue
        before, behind = (numbers.get(sites.get(v.name or "", "")) for v in (node.inputs[0], node.outputs[0]))
        if before is None or behind is None:
            continue
        least = float(before.scale.max()) / _POOL_RATIO
        if float(behind.scale.min()) < least:
            wider = np.maximum(behind.scale, behind.scale.dtype.type(least))
            numbers[sites[node.outputs[0].name or ""]] = replace(behind, scale=wider)
    return []
