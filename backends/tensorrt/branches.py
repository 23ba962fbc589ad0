"""Which branch of a residual Add TensorRT wants quantized: the one that no convolution computes along with the Add."""

from __future__ import annotations

from collections import deque

import onnx_ir as ir

from onnxq.graph.values import is_constant

__all__ = ["ACTIVATIONS", "CONVOLUTIONS", "LONGEST", "WITH_CONSTANT", "shortcut"]

ACTIVATIONS = frozenset(
    {"Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu"}
    | {"Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"}
)
"""Functions of single elements, computed at the end of the kernel of the operator in front of them."""
CONVOLUTIONS = ("Conv", "ConvTranspose")
WITH_CONSTANT = ("Add", "BatchNormalization", "Div", "Mul", "Sub")
"""Arithmetic that is computed there as well where the other operands are constants."""
LONGEST = 8
"""Operators behind a convolution that are looked through."""
_LEFT, _RIGHT, _BOTH = 1, 2, 3


def shortcut(node: ir.Node) -> tuple[int, ...]:
    """Position of the branch of a residual Add that is quantized; none where it is no such Add.

    The other branch comes from a convolution that computes the Add as well. Where both do, the branch of fewer
    operators of its own is the shortcut; the first one of equals, as in NVIDIA's Model Optimizer.
    """
    left, right = node.inputs[0], node.inputs[1]
    if left is right or is_constant(left) or is_constant(right):
        return ()
    ends = _backbone(left), _backbone(right)
    if ends[0] is None or ends[1] is None:
        return (1,) if ends[0] is not None else (0,) if ends[1] is not None else ()
    of_left, of_right = _own(left, right)
    return (0,) if of_left <= of_right else (1,)


def _backbone(value: ir.Value | None) -> ir.Node | None:
    """The convolution whose kernel can compute a tensor: nothing else reads what is between."""
    for _ in range(LONGEST):
        node = value.producer() if value is not None else None
        if value is None or node is None or value.is_graph_output() or len(value.uses()) != 1:
            return None
        if node.op_type in CONVOLUTIONS:
            return node
        gated = _gated(node)
        if gated is not None:
            value, node = gated, gated.producer()
            readers = {use.node for use in value.uses()}
            if node is None or node.op_type not in CONVOLUTIONS or value.is_graph_output() or len(readers) != 2:
                return None
            return node
        rest = node.inputs[1:]
        if node.op_type not in (*ACTIVATIONS, *WITH_CONSTANT) or not all(v is None or is_constant(v) for v in rest):
            return None
        value = node.inputs[0]
    return None


def _gated(node: ir.Node) -> ir.Value | None:
    """x of a node that is x · f(x), as SiLU is written."""
    if node.op_type != "Mul":
        return None
    for x, y in (node.inputs, reversed(node.inputs)):
        function = y.producer() if y is not None else None
        if function is not None and function.op_type in ACTIVATIONS and function.inputs[0] is x:
            return x
    return None


def _own(left: ir.Value | None, right: ir.Value | None) -> tuple[int, int]:
    """How many operators the one and the other of two tensors depend on alone, up to where they meet.

    Both are followed backwards in step, until both depend on all that is left to follow. What one has been followed
    through before the other comes there is marked for both at once: the walk ends soon behind the meeting point.
    """
    marks: dict[ir.Node, int] = {}
    pending: deque[ir.Node] = deque()
    followed: set[ir.Node] = set()
    alone = 0  # nodes among those pending that one side has come to

    def reach(value: ir.Value | None, mark: int) -> int:
        """Mark what makes a tensor; gives the change of ``alone``."""
        change, values = 0, [value]
        while values:
            current = values.pop()
            node = current.producer() if current is not None else None
            before = marks.get(node, 0) if node is not None else mark
            if node is None or before | mark == before:
                continue
            marks[node] = before | mark
            if not before:
                pending.append(node)
                change += mark != _BOTH
            elif node in followed:
                values += node.inputs
            else:
                change -= 1
        return change

    alone += reach(left, _LEFT) + reach(right, _RIGHT)
    while alone:
        node = pending.popleft()
        followed.add(node)
        alone -= marks[node] != _BOTH
        alone += sum(reach(value, marks[node]) for value in node.inputs)
    counts = list(marks.values())
    return counts.count(_LEFT), counts.count(_RIGHT)
