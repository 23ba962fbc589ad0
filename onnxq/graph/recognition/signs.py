"""What the operators before a tensor say of its sign."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxq.graph.values import constant_array, input_of

__all__ = ["cannot_be_negative"]

_NEVER = frozenset(
    {"Abs", "Exp", "GlobalLpPool", "HardSigmoid", "LpPool", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu"}
    | {"Sigmoid", "Softmax", "Softplus", "Sqrt"}
)
_KEEPING = frozenset(
    {"AveragePool", "Cast", "Ceil", "Compress", "DepthToSpace", "Dropout", "Expand", "Flatten", "Floor", "Gather"}
    | {"GatherElements", "GatherND", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LRN", "MaxPool", "Pow"}
    | {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Sign", "Slice"}
    | {"SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze"}
)
"""Operators of which no output is negative where the first input is not."""
_JOINING = frozenset({"Add", "Concat", "Div", "Max", "Mean", "Min", "Mul", "Sum"})
"""The same, of all their inputs."""
_FARTHEST = 16
"""Operators that are looked through."""


def cannot_be_negative(
    value: ir.Value | None, known: Collection[str] = (), *, joined: bool = False, steps: int = _FARTHEST
) -> bool:
    """Whether all that stands before a tensor shows that it holds no negative number.

    Args:
        value: the tensor.
        known: names of tensors before it that are known to hold none.
        joined: look through sums, products and concatenations too.
        steps: number of operators that are looked through.
    """
    node = value.producer() if value is not None else None
    if node is None or node.domain != "" or steps == 0:
        return False
    if node.op_type in _NEVER:
        return True
    if node.op_type == "Clip":
        low = constant_array(input_of(node, 1))
        return low is not None and float(low.reshape(())) >= 0.0
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return True
    joins = joined and node.op_type in _JOINING
    if not joins and node.op_type not in _KEEPING:
        return False
    sources = node.inputs if joins else node.inputs[:1]
    return all(
        (v is not None and v.name in known) or cannot_be_negative(v, known, joined=joined, steps=steps - 1)
        for v in sources
    )
