"""What a user of a finished result might try next: where most of the arithmetic runs otherwise than it could."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.placement import elements
from onnxq.plan import Plan
from onnxq.planning.rows import row

__all__ = ["hints"]

_MUCH = 0.5
"""Share of the multiply-accumulates from which on a reason is worth a line of its own."""


def hints(model: ir.Model, plan: Plan, target: Backend, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """What to say of layers that do most of a model's arithmetic in float, where the target's table says why.

    Args:
        model: the float model that was planned.
        plan: where it is quantized.
        target: its rows give the reasons, see ``Backend.stored_because``.
        sizes: tensor name → number of elements, where data has shown it; else the shapes in the model are used.
    """
    kept = {k.node: k.op for k in plan.kept_float if target.stored_because.get(k.op) == k.reason}
    if not kept:
        return ()
    total, of_op = 0, Counter[str]()
    for node in all_nodes(model):
        rule = row(target, node)
        if rule is not None and rule.kind in (Kind.COMPUTE, Kind.WEIGHT_ONLY):
            macs = _macs(node, rule.weights, sizes)
            total += macs
            of_op[kept.get(node.name or "", "")] += macs
    number = Counter(kept.values())
    return tuple(
        f"{number[op]} {op}, {of_op[op] / total:.0%} of the arithmetic: {target.stored_because[op]}"
        for op in number
        if of_op[op] >= _MUCH * total > 0
    )


def _macs(node: ir.Node, weights: tuple[int, ...], sizes: Mapping[str, int]) -> int:
    """Multiply-accumulates of a layer, about: what moves rows has none."""
    found = [v for p in weights if p < len(node.inputs) and is_constant(v := node.inputs[p])]
    tensors = [v.const_value for v in found if v is not None and v.const_value is not None]
    dims = [list(tensor.shape.numpy()) for tensor in tensors if len(tensor.shape) > 1]
    if not dims or node.op_type == "Gather":
        return 0
    count = sum(math.prod(d) for d in dims)
    if node.op_type == "Conv":
        return _size(node.outputs[0], sizes) // max(dims[0][0], 1) * count
    inner = {"MatMul": -2, "ConvTranspose": 0, "Gemm": -1 if node.attributes.get_int("transB", 0) else 0}
    return _size(node.inputs[0], sizes) // max(dims[0][inner.get(node.op_type, -1)], 1) * count


def _size(value: ir.Value | None, sizes: Mapping[str, int]) -> int:
    return 0 if value is None else sizes.get(value.name or "") or elements(value)
