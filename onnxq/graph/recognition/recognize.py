"""A region grown from a statistic of a tensor until one value alone comes out, recognized by what it computes.

What is grown is run on random numbers and compared with the functions it may be, so that no way of writing one has to
be known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.recognition.region import (
    ELEMENTWISE,
    REDUCTIONS,
    VIEWS,
    Array,
    backward,
    compute,
    is_side_input,
    open_values,
)
from onnxq.graph.values import is_constant

__all__ = ["ALLOWED", "LIMIT", "Function", "recognize"]

Function = Callable[[Array, tuple[int, ...]], Array]
"""Tensor, axes → tensor of the same shape."""

ALLOWED = ELEMENTWISE | REDUCTIONS | VIEWS
_GROWING = frozenset({"Add", "Div", "Log", "Mul", "Neg", "Reciprocal", "Sub"}) | VIEWS
LIMIT = 32
_DRAWS = 4
_TOLERANCE = 1e-3
_MAX_ELEMENTS = 1 << 13


def recognize(
    anchor: ir.Node,
    start: ir.Value,
    axes: tuple[int, ...],
    functions: Mapping[str, Function],
    position: Mapping[ir.Node, int],
    taken: set[ir.Node],
    *,
    affine: bool = True,
) -> tuple[str, set[ir.Node], ir.Value] | None:
    """Takes in reader after reader of what is known until one tensor alone comes out and it is the function wanted."""
    nodes = backward(anchor.outputs[0], start, ALLOWED, limit=LIMIT, scalars_only=False)
    if nodes is None or nodes & taken or any(node not in position for node in nodes):
        return None
    draws, trailing = _draws(start, axes)
    if draws is None or trailing is None:
        return None
    wanted = {kind: function(draws, trailing) for kind, function in functions.items()}
    known: list[dict[ir.Value, Array]] = [{start: draw} for draw in draws]
    new = sorted(nodes, key=position.__getitem__)
    while len(nodes) <= LIMIT:
        reader = _next_reader(nodes, start, position, taken)
        if reader is None:
            return None
        nodes.add(reader)
        last = reader.outputs[0]
        made = _made([*new, reader], last, known)
        if made is None:
            return None
        new = []
        kind = _kind(made, wanted, affine=affine)
        if kind is None:
            continue
        return (kind, nodes, last) if open_values(nodes) == [last] else None
    return None


def _next_reader(
    nodes: set[ir.Node], start: ir.Value, position: Mapping[ir.Node, int], taken: set[ir.Node]
) -> ir.Node | None:
    """The first node outside that depends only on what is inside, on the start, and on constants."""
    best: ir.Node | None = None
    made = {value for node in nodes for value in node.outputs}
    for value in made:
        for use in value.uses():
            node = use.node
            if (
                node in nodes
                or node in taken
                or node not in position
                or node.op_type not in _GROWING
                or node.domain != ""
            ):
                continue
            data = [v for i, v in enumerate(node.inputs) if v is not None and not is_side_input(node, i)]
            if all(v in made or v is start or is_constant(v) for v in data) and (
                best is None or position[node] < position[best]
            ):
                best = node
    return best


def _draws(start: ir.Value, axes: tuple[int, ...]) -> tuple[Array | None, tuple[int, ...] | None]:
    """A few random tensors of the start's shape, (draws, *shape), unknown and large kept dimensions being 1."""
    if start.shape is None or len(start.shape) == 0:
        return None, None
    rank = len(start.shape)
    trailing = tuple(sorted((axis % rank) - rank for axis in axes)) if axes else tuple(range(-rank, 0))
    shape: list[int] = []
    for index, dim in enumerate(start.shape):
        reduced = index - rank in trailing
        if not isinstance(dim, int):
            dim = 8 if reduced else 1
        shape.append(dim if reduced or dim <= 4096 else 1)
    if int(np.prod(shape)) > _MAX_ELEMENTS:
        shape = [dim if index - rank in trailing else 1 for index, dim in enumerate(shape)]
    if int(np.prod(shape)) > 1 << 20 or any(dim < 1 for dim in shape):
        return None, None
    random = np.random.default_rng(0)
    return random.normal(1.0, 3.0, (_DRAWS, *shape)), trailing


def _made(nodes: Sequence[ir.Node], end: ir.Value, known: Sequence[dict[ir.Value, Array]]) -> Array | None:
    """What comes out at ``end`` for each draw, one behind the other; None where it cannot be computed.

    Args:
        nodes: those not computed yet, in order.
        end: made by the last of them.
        known: all values of a draw, each; added to.
    """
    for values in known:
        computed = compute(nodes, values)
        if computed is None:
            return None
        values.update(computed)
    return np.stack([values[end] for values in known])


def _kind(made: Array, wanted: Mapping[str, Array], *, affine: bool) -> str | None:
    """Which function gives what was made of the draws: name → what it gives for these."""
    if not np.isfinite(made).all():
        return None
    for kind, result in wanted.items():
        if made.size < result.size:
            continue
        try:
            difference = made - result if not affine else _affine_residual(made, result)
        except ValueError:
            return None
        if float(np.abs(difference).max()) <= _TOLERANCE * max(1.0, float(np.abs(made).max())):
            return kind
    return None


def _affine_residual(made: Array, wanted: Array) -> Array:
    """What is left of ``made`` after the best a·wanted + b, an a and a b for each position over the draws (axis 0)."""
    made, wanted = np.broadcast_arrays(made, wanted)
    centre, mean = wanted.mean(axis=0), made.mean(axis=0)
    x, y = wanted - centre, made - mean
    slope = (x * y).sum(axis=0) / np.maximum((x * x).sum(axis=0), 1e-30)
    if float(np.abs(slope).max()) < 1e-12:
        return np.full_like(y, np.inf)
    return np.asarray(y - slope * x)
