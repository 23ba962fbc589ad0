"""Operators by what they do with integers in OpenVINO, and where tensors have them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["FUNCTIONS", "LARGEST", "MATRICES", "MOVES", "MULTIPLY", "PASS", "POOLS", "from_integers", "makers"]

POOLS = ("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum")
LARGEST = ("GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Reductions to one of their elements."""
MOVES: tuple[str, ...] = ("DepthToSpace", "Flatten", "Gather", "Reshape", "Slice")
MOVES += ("SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze")
PASS = (*MOVES, *LARGEST, "Concat", "MaxPool", "Resize")
"""Operators that pass the integers of their inputs on."""
MULTIPLY = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FUNCTIONS = frozenset(
    {"Abs", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Sigmoid"}
    | {"Softplus", "Sqrt", "Tanh"}
)
"""Activation functions computed at the end of a convolution's or matrix product's kernel."""
MATRICES = 3
"""Axes of a batch of matrices."""
_FARTHEST = 16
"""Operators that are looked through."""


def from_integers(value: ir.Value | None) -> bool:
    """Whether a multiply-accumulate makes a tensor: its kernel can then write integers."""
    return any(node.op_type in (*MULTIPLY, "Concat") for node in makers(value))


def makers(value: ir.Value | None) -> Iterator[ir.Node]:
    """The nodes that make a tensor, the last one first, back to the first that passes no integers on."""
    for _ in range(_FARTHEST):
        node = value.producer() if value is not None else None
        if node is None:
            return
        yield node
        if node.op_type not in (*FUNCTIONS, *PASS, "Add", "Mul", "Sub"):
            return
        first = node.inputs[0]
        value = node.inputs[1] if len(node.inputs) > 1 and first is not None and first.producer() is None else first
