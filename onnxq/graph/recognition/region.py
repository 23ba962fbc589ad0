"""Pieces of a graph between one tensor and another, and what they compute, judged by numbers.

Exporters write one function in many ways. Instead of listing the ways, a region is gathered from an operator that the
function must contain, computed in float64 on a few numbers, and compared with the function itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.values import constant_array, input_of, is_constant, scalar

__all__ = [
    "ELEMENTWISE",
    "REDUCTIONS",
    "VIEWS",
    "Array",
    "axes_of",
    "backward",
    "compute",
    "is_side_input",
    "open_values",
]

Array = NDArray[np.float64]

ELEMENTWISE = frozenset(
    {
        "Add", "Clip", "Div", "Erf", "Exp", "HardSigmoid", "Identity", "Log", "Max", "Min", "Mul", "Neg", "Pow",
        "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh",
    }
)  # fmt: skip

_POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
"""Reductions over all axes behind the second, and what they are otherwise called."""
REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum", *_POOLS})

VIEWS = frozenset({"Cast", "Expand", "Reshape", "Squeeze", "Unsqueeze"})
"""Where they only put back the axes that a reduction took away, they change no number."""

_erf = np.vectorize(math.erf, otypes=[np.float64])

_UNARY: dict[str, Callable[[Array], Array]] = {
    "Erf": _erf,
    "Exp": np.exp,
    "Identity": lambda x: x,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    **{name: lambda x: x for name in VIEWS},
}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
}


def is_side_input(node: ir.Node, index: int) -> bool:
    """Whether an input only steers a node (axes, shapes, a clip bound that is constant) instead of being its data."""
    return index > 0 and (node.op_type in VIEWS or node.op_type in REDUCTIONS)


def axes_of(node: ir.Node) -> tuple[int, ...] | None:
    """Axes of a reduction, as written, () for all; None when they are computed at run time or unknown."""
    if node.op_type in _POOLS:
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        return tuple(range(2, len(shape))) if shape is not None and len(shape) > 2 else None
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].as_ints())
    if input_of(node, 1) is not None:
        array = constant_array(node.inputs[1])
        return None if array is None else tuple(int(axis) for axis in array.reshape(-1))
    return ()


def backward(
    end: ir.Value, start: ir.Value, allowed: frozenset[str], *, limit: int, scalars_only: bool
) -> set[ir.Node] | None:
    """The nodes between ``start`` and ``end``, when ``end`` depends on nothing else but constants.

    Args:
        end: made by the last node.
        start: where the walk back stops.
        allowed: operators that may lie between.
        limit: the most nodes looked at.
        scalars_only: constants must have one element.

    Returns:
        The nodes, or None when there is more to it.
    """
    found: set[ir.Node] = set()
    stack = [end]
    met = False
    while stack:
        value = stack.pop()
        if value is start:
            met = True
            continue
        if is_constant(value):
            if scalars_only and scalar(value) is None:
                return None
            continue
        node = value.producer()
        if node is None or node.domain != "" or node.op_type not in allowed:
            return None
        if node in found:
            continue
        found.add(node)
        if len(found) > limit:
            return None
        stack.extend(v for index, v in enumerate(node.inputs) if v is not None and not is_side_input(node, index))
    return found if met else None


def open_values(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """The values made inside a region that something outside needs."""
    members = set(nodes)
    return [
        value
        for node in members
        for value in node.outputs
        if value.is_graph_output() or any(use.node not in members for use in value.uses())
    ]


def compute(nodes: Sequence[ir.Node], feeds: Mapping[ir.Value, Array]) -> dict[ir.Value, Array] | None:
    """Computes a region in float64; reductions keep their axes, so that views of what they make change nothing.

    Args:
        nodes: in order.
        feeds: what comes in; an extra leading axis is carried along when the axes of reductions are negative.

    Returns:
        All values, or None when something cannot be computed.
    """
    known: dict[ir.Value, Array] = dict(feeds)

    def read(value: ir.Value | None) -> Array | None:
        if value is None:
            return None
        if value not in known:
            array = constant_array(value)
            if array is None:
                return None
            known[value] = array.astype(np.float64)
        return known[value]

    with np.errstate(all="ignore"):
        for node in nodes:
            first = read(node.inputs[0])
            if first is None:
                return None
            result = _apply(node, first, read)
            if result is None:
                return None
            known[node.outputs[0]] = np.asarray(result, dtype=np.float64)
    return known


def _apply(node: ir.Node, x: Array, read: Callable[[ir.Value | None], Array | None]) -> Any:
    op = node.op_type
    try:
        if op in _UNARY:
            return _UNARY[op](x)
        if op in _BINARY and len(node.inputs) == 2:
            other = read(node.inputs[1])
            return None if other is None else _BINARY[op](x, other)
        if op == "HardSigmoid":
            alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
            return np.clip(alpha * x + beta, 0, 1)
        if op == "Clip":
            bounds = [read(value) for value in node.inputs[1:3]]
            low = bounds[0] if bounds and bounds[0] is not None else -np.inf
            high = bounds[1] if len(bounds) > 1 and bounds[1] is not None else np.inf
            return np.clip(x, low, high)
        if op in REDUCTIONS:
            axes = axes_of(node)
            if axes is None:
                return None
            function = {"ReduceMax": np.max, "ReduceMean": np.mean, "ReduceSum": np.sum}[_POOLS.get(op, op)]
            return function(x, axis=axes or None, keepdims=True)  # type: ignore[operator]
    except ValueError:  # shapes that do not go together: not what it was taken for
        return None
    return None
