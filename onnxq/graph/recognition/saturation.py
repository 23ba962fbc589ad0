"""Between which bounds a tensor matters: beyond them, all that reads it gives next to the same as at the bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from onnxq.graph.values import scalar

__all__ = ["ALL", "bounds"]

Bounds = tuple[float, float]

ALL: Bounds = (-math.inf, math.inf)
"""The bounds of a tensor all of whose numbers matter."""
_MOVING = frozenset(
    {"Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
    | {"DepthToSpace", "SpaceToDepth", "Expand", "Tile"}
)
"""Operators of whose first input every number in an output is one."""


def _alpha(node: ir.Node, default: float) -> float:
    return node.attributes.get_float("alpha", default)


def _hard_sigmoid(node: ir.Node, depth: float) -> Bounds:
    alpha, beta = _alpha(node, 0.2), node.attributes.get_float("beta", 0.5)
    return (-beta / alpha, (1.0 - beta) / alpha) if alpha > 0 else ALL


def _clip(node: ir.Node, depth: float) -> Bounds:
    ends = list(ALL)
    for position, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        end = scalar(value)
        if end is None:
            return ALL
        ends[position] = end
    return ends[0], ends[1]


_FUNCTIONS: dict[str, Callable[[ir.Node, float], Bounds]] = {
    "Celu": lambda node, depth: (-depth * _alpha(node, 1.0), math.inf) if _alpha(node, 1.0) > 0 else ALL,
    "Clip": _clip,
    "Elu": lambda node, depth: (-depth, math.inf),
    "Erf": lambda node, depth: (-math.sqrt(depth), math.sqrt(depth)),
    "Gelu": lambda node, depth: (-math.sqrt(2 * depth), math.inf),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda node, depth: (-3.0, math.inf),
    "Relu": lambda node, depth: (0.0, math.inf),
    "Selu": lambda node, depth: (-depth, math.inf),
    "Sigmoid": lambda node, depth: (-depth, depth),
    "Softplus": lambda node, depth: (-depth, math.inf),
    "Tanh": lambda node, depth: (-depth / 2, depth / 2),
}
"""Where a function is at its limit, or as near to it as ``exp(-depth)``; of an alpha times that where it has one."""
_FINER = 3.5
"""Bits by which that is finer than a step of the grid over one unit."""


def bounds(value: ir.Value | None, bits: int) -> Bounds:
    """The numbers of a tensor that its readers tell apart, as (lowest, highest); infinite where there is no bound.

    Looked through is what only moves numbers about. A graph output, and a tensor that a subgraph reads, has no bounds.

    Args:
        value: a tensor of a normalized model.
        bits: of the grid that is to hold it; the finer, the farther the bounds.
    """
    low, high = math.inf, -math.inf
    depth = math.log(2) * (bits + _FINER)
    waiting, seen = [value], set()
    while waiting:
        tensor = waiting.pop()
        if tensor is None or tensor in seen:
            continue
        seen.add(tensor)
        uses = tensor.uses()
        if tensor.is_graph_output() or not uses:
            return ALL
        for node, position in ((use.node, use.idx) for use in uses):
            if position != 0 or node.domain != "":
                return ALL
            if node.op_type in _MOVING:
                waiting += [output for output in node.outputs if output.uses() or output.is_graph_output()]
            elif node.op_type in _FUNCTIONS:
                least, most = _FUNCTIONS[node.op_type](node, depth)
                low, high = min(low, least), max(high, most)
            else:
                return ALL
    return (low, high) if low < high else ALL
