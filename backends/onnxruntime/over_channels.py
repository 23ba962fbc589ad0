"""Reductions over the channels of channels-first tensors, which onnxruntime 1.32 computes slowly, written otherwise.

Figures as in :mod:`.fast_floats`. Behind the channels all axes are one: a sum over them is then the product of a row of
ones with a matrix, and an extreme that of a few extremes; so is a sum where there may be no sample.

Between integer convolutions, which have the channels last, all stays as it is: onnxruntime moves the Transposes around
those through to the other side, where nothing else stands between, and is fast with the channels last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.kernels import is_unpacked, quantizer_behind
from onnxq.graph.passes.chain import Chain
from onnxq.graph.passes.permuted import PERMUTABLE
from onnxq.graph.recognition.region import axes_of
from onnxq.graph.values import size_along

__all__ = ["REDUCTIONS", "has_channels_last", "is_quantized", "reduction", "softmax"]

_EXTREMES = ("ReduceMax", "ReduceMin")
REDUCTIONS = (*_EXTREMES, "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")
"""Operators for :func:`reduction`."""
_SHAPE_OF_SOME = 15
"""Opset from which on a Shape may leave out axes in front."""
_THROUGH = PERMUTABLE | {"AveragePool", "DequantizeLinear", "MaxPool", "QuantizeLinear", "Resize"}
"""What onnxruntime moves Transposes through."""
_FURTHEST = 200
"""Nodes that are looked at, at most."""


def reduction(chain: Chain) -> ir.Value | None:
    """Sums over the channels of one sample as matrix products, 1.5 → 0.1; other reductions in two steps, 1.5 → 0.2.

    onnxruntime is fast where there is an axis in front of the one that it reduces, or none behind it.
    """
    node, rank = chain.node, len(chain.x.shape or ())
    over_channels = rank > 2 and axes_of(node) in ((1,), (1 - rank,)) and _may_be_one(chain.x)
    if not over_channels or has_channels_last(node) or not (_is_product(chain.x, node.op_type) or _factor(chain.x)):
        return None
    planes = _planes(chain)
    if planes is None:
        return None
    kept = [1] if node.attributes.get_int("keepdims", 1) else []
    return chain.put("Reshape", planes.reduced(node.op_type), _target(chain, 0, *kept, *planes.sizes))


def _may_be_one(x: ir.Value) -> bool:
    """Whether a tensor holds one sample, as far as it is known."""
    return x.shape is not None and (x.shape[0] == 1 or not isinstance(x.shape[0], int))


def _is_product(x: ir.Value, op: str) -> bool:
    """Whether a reduction is a product: a sum, where there is a sample. onnxruntime 1.23 makes no product of none."""
    return op not in _EXTREMES and x.shape is not None and isinstance(x.shape[0], int)


def softmax(chain: Chain) -> ir.Value | None:
    """A Softmax or LogSoftmax over channels by its definition: 7.3 → 1.2.

    onnxruntime is fast on the last axis alone, and takes Transposes around it back.
    """
    node, rank = chain.node, len(chain.x.shape or ())
    over_channels = rank > 2 and node.attributes.get_int("axis", -1) in (1, 1 - rank)
    planes = _planes(chain) if over_channels and not is_quantized(node) and not has_channels_last(node) else None
    if planes is None:
        return None
    below = planes.put("Sub", planes.reduced("ReduceMax"))
    raised = below.put("Exp")
    total = raised.reduced("ReduceSum")
    made = below.put("Sub", chain.put("Log", total)) if node.op_type == "LogSoftmax" else raised.put("Div", total)
    return chain.put("Reshape", made.x, _target(chain, 0, 0, *planes.sizes))


@dataclass(frozen=True)
class _Planes:
    """A tensor with all axes behind the channels as one, (N, C, K).

    Attributes:
        chain: puts nodes.
        x: it.
        channels: C.
        size: K, or a vector that holds it.
        sizes: of the axes, or a vector that holds them.
    """

    chain: Chain
    x: ir.Value
    channels: int
    size: int | ir.Value
    sizes: tuple[int | ir.Value, ...]

    def put(self, op: str, *others: ir.Value) -> _Planes:
        """Compute element by element."""
        return replace(self, x=self.chain.put(op, self.x, *others))

    def reduced(self, op: str) -> ir.Value:
        """A reduction over the channels, (N, 1, K)."""
        if not _is_product(self.chain.x, op):
            return self._in_two(op)
        x = self.put("Mul", self.x).x if op in ("ReduceL2", "ReduceSumSquare") else self.x
        each = 1.0 / self.channels if op == "ReduceMean" else 1.0
        ones = self.chain.constant("ones", np.full((1, 1, self.channels), each, np.float32))
        total = self.chain.put("MatMul", ones, x)
        return self.chain.put("Sqrt", total) if op == "ReduceL2" else total

    def _in_two(self, op: str) -> ir.Value:
        factor = _factor(self.chain.x)
        if factor is None:
            return self.chain.reduce(op, self.x, 1)
        split = _target(self.chain, 0, factor, self.channels // factor, self.size)
        parts = self.chain.reduce(op, self.chain.put("Reshape", self.x, split), 2)
        found = self.chain.reduce("ReduceSum" if op == "ReduceSumSquare" else op, parts, 1)
        return self.chain.put("Reshape", found, _target(self.chain, 0, 1, self.size))


def _factor(x: ir.Value) -> int | None:
    """The smallest number of parts, 2 or more, that the channels can be split into; None where one is left in each."""
    channels = size_along(x, 1)
    if channels is None:
        return None
    return next((n for n in range(2, math.isqrt(channels) + 1) if channels % n == 0), None)


def _planes(chain: Chain) -> _Planes | None:
    """The first input of a node so; None where that takes numbers that are not known. No node is put then."""
    assert chain.x.shape is not None
    channels, behind = chain.x.shape[1], list(chain.x.shape[2:])
    known = [size for size in behind if isinstance(size, int)]
    if not isinstance(channels, int) or (len(known) < len(behind) and chain.opset < _SHAPE_OF_SOME):
        return None
    if len(known) == len(behind):
        size: int | ir.Value = math.prod(known)
        sizes: tuple[int | ir.Value, ...] = tuple(known)
    else:
        shape = chain.put("Shape", chain.x, dtype=ir.DataType.INT64, start=ir.AttrInt64("start", 2))
        size, sizes = chain.put("ReduceProd", shape, dtype=ir.DataType.INT64), (shape,)
    x = chain.x if len(behind) == 1 else chain.put("Reshape", chain.x, _target(chain, 0, channels, size))
    return _Planes(chain, x, channels, size, sizes)


def _target(chain: Chain, *sizes: int | ir.Value) -> ir.Value:
    """What to reshape to, without a size of -1, which has no meaning where there are no elements."""
    if all(isinstance(size, int) for size in sizes):
        return chain.integers(*(size for size in sizes if isinstance(size, int)))
    parts = [chain.integers(size) if isinstance(size, int) else size for size in sizes]
    return chain.put("Concat", *parts, dtype=ir.DataType.INT64, axis=ir.AttrInt64("axis", 0))


def has_channels_last(node: ir.Node) -> bool:
    """Whether onnxruntime will compute a node with the channels last: between integer convolutions."""
    return _leads_to_integers(node, ir.Node.predecessors) and _leads_to_integers(node, ir.Node.successors)


def _leads_to_integers(node: ir.Node, neighbours: Callable[[ir.Node], Iterable[ir.Node]]) -> bool:
    waiting, seen = [node], {node}
    while waiting and len(seen) < _FURTHEST:
        for near in neighbours(waiting.pop(0)):
            if near.op_type == "Conv" and quantizer_behind(near) is not None:
                return True
            if near.op_type in _THROUGH and near not in seen:
                seen.add(near)
                waiting.append(near)
    return False


def is_quantized(node: ir.Node) -> bool:
    """Whether a node stands between quantizers, which onnxruntime makes one integer kernel of."""
    readers = {reader.op_type for reader in node.outputs[0].consumers()}
    return is_unpacked(node.inputs[0]) and readers == {"QuantizeLinear"}
