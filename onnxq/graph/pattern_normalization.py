"""LayerNorm, RMSNorm and (log-)softmax written out: a tensor against a statistic of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.region import (
    ELEMENTWISE,
    REDUCTIONS,
    VIEWS,
    Array,
    axes_of,
    backward,
    compute,
    is_side_input,
    open_values,
    scalar,
)
from onnxq.graph.values import constant_array, is_constant, only_reader

__all__ = ["match_normalization"]

Match = tuple[str, set[ir.Node], ir.Value, ir.Value]

_ALLOWED = ELEMENTWISE | REDUCTIONS | VIEWS
_GROWING = frozenset({"Add", "Div", "Log", "Mul", "Neg", "Reciprocal", "Sub"}) | VIEWS
_LIMIT = 32
_DRAWS = 4
_TOLERANCE = 1e-3
_MAX_ELEMENTS = 1 << 13


def match_normalization(
    anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node], misses: list[Note]
) -> Match | None:
    """The group around the square root of a variance, or around the exponential of a softmax, if it is one.

    Args:
        anchor: any node.
        position: each node of the graph and its place.
        taken: nodes of groups found before.
        misses: gets a note when the function is there but something outside needs a tensor inside it.

    Returns:
        Kind, nodes, input and output. The input x of a normalization with scale and bias is the tensor before both.
    """
    if anchor.domain != "" or anchor in taken:
        return None
    if anchor.op_type == "Sqrt" or (anchor.op_type == "Pow" and scalar(anchor.inputs[1]) in (0.5, -0.5)):
        return _match_norm(anchor, position, taken, misses)
    if anchor.op_type == "Exp":
        return _match_softmax(anchor, position, taken, misses)
    return None


def _through_views(value: ir.Value | None) -> ir.Node | None:
    """The node that makes a value, looking through views and multiplications by a number."""
    for _ in range(8):
        node = value.producer() if value is not None else None
        if node is None or node.domain != "":
            return None
        if node.op_type in VIEWS:
            value = node.inputs[0]
        elif node.op_type in ("Mul", "Div", "Max", "Min") and len(node.inputs) == 2:
            variable = [v for v in node.inputs if scalar(v) is None]
            if len(variable) != 1:
                return node
            value = variable[0]
        else:
            return node
    return None


def _reductions_before(node: ir.Node) -> list[ir.Node]:
    """The reductions met first when walking back from a node."""
    found: list[ir.Node] = []
    stack = [node]
    seen: set[ir.Node] = set()
    while stack and len(seen) < _LIMIT:
        current = stack.pop()
        if current in seen or current.domain != "":
            continue
        seen.add(current)
        if current.op_type in REDUCTIONS:
            found.append(current)
            continue
        if current.op_type not in _ALLOWED:
            continue
        for index, value in enumerate(current.inputs):
            producer = value.producer() if value is not None and not is_side_input(current, index) else None
            if producer is not None:
                stack.append(producer)
    return found


def _squared(value: ir.Value | None) -> ir.Value | None:
    """d where value is d·d or d²."""
    node = value.producer() if value is not None else None
    if node is None or node.domain != "":
        return None
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    if node.op_type == "Pow" and scalar(node.inputs[1]) == 2.0:
        return node.inputs[0]
    return None


def _match_norm(
    anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node], misses: list[Note]
) -> Match | None:
    for reduction in _reductions_before(anchor):
        deviation = _squared(reduction.inputs[0])
        if deviation is None:
            continue
        starts = [deviation]
        centre = deviation.producer()
        if centre is not None and centre.op_type == "Sub" and centre.domain == "":
            mean = _through_views(centre.inputs[1])
            if mean is not None and mean.op_type in REDUCTIONS and mean.inputs[0] is centre.inputs[0]:
                starts = [value for value in (centre.inputs[0],) if value is not None]
        axes = axes_of(reduction)
        for start in starts:
            if axes is None:
                continue
            found = _grow(anchor, start, axes, {"layernorm": _layernorm, "rmsnorm": _rmsnorm}, position, taken, misses)
            if found is not None:
                kind, nodes, end = found
                end = _with_affine(nodes, end, position, taken)
                return kind, nodes, start, end
    return None


def _match_softmax(
    anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node], misses: list[Note]
) -> Match | None:
    total = next((use.node for use in anchor.outputs[0].uses() if use.node.op_type == "ReduceSum"), None)
    if total is None or total not in position:
        return None
    start = anchor.inputs[0]
    shifted = start.producer() if start is not None else None
    if shifted is not None and shifted.op_type == "Sub" and shifted.domain == "":
        peak = _through_views(shifted.inputs[1])
        if peak is not None and peak.op_type == "ReduceMax" and peak.inputs[0] is shifted.inputs[0]:
            start = shifted.inputs[0]
    axes = axes_of(total)
    if start is None or axes is None:
        return None
    functions = {"softmax": _softmax, "logsoftmax": _log_softmax}
    found = _grow(total, start, axes, functions, position, taken, misses, affine=False)
    return None if found is None else (found[0], found[1], start, found[2])


def _layernorm(x: Array, axes: tuple[int, ...]) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    with np.errstate(invalid="ignore"):  # 0/0 over an axis of one element
        return np.asarray(centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True)))


def _rmsnorm(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(axis=axes, keepdims=True)))


def _softmax(x: Array, axes: tuple[int, ...]) -> Array:
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return np.asarray(e / e.sum(axis=axes, keepdims=True))


def _log_softmax(x: Array, axes: tuple[int, ...]) -> Array:
    shifted = x - x.max(axis=axes, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True)))


def _grow(
    anchor: ir.Node,
    start: ir.Value,
    axes: tuple[int, ...],
    functions: Mapping[str, Callable[[Array, tuple[int, ...]], Array]],
    position: Mapping[ir.Node, int],
    taken: set[ir.Node],
    misses: list[Note],
    *,
    affine: bool = True,
) -> tuple[str, set[ir.Node], ir.Value] | None:
    """Takes in reader after reader of what is known until one tensor alone comes out and it is the function wanted."""
    nodes = backward(anchor.outputs[0], start, _ALLOWED, limit=_LIMIT, scalars_only=False)
    if nodes is None or nodes & taken or any(node not in position for node in nodes):
        return None
    draws, trailing = _draws(start, axes)
    if draws is None or trailing is None:
        return None
    while len(nodes) <= _LIMIT:
        reader = _next_reader(nodes, start, position, taken)
        if reader is None:
            return None
        nodes.add(reader)
        outside = open_values(nodes)
        last = reader.outputs[0]
        kind = _kind(nodes, start, last, draws, trailing, functions, position, affine=affine)
        if kind is None:
            continue
        if len(outside) == 1:
            return kind, nodes, last
        leak = next((value for value in outside if value is not last), last)
        misses.append(Note("groups", last.name or "", f"{kind}, but '{leak.name}' inside it is read elsewhere"))
        return None
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


def _kind(
    nodes: set[ir.Node],
    start: ir.Value,
    end: ir.Value,
    draws: Array,
    axes: tuple[int, ...],
    functions: Mapping[str, Callable[[Array, tuple[int, ...]], Array]],
    position: Mapping[ir.Node, int],
    *,
    affine: bool,
) -> str | None:
    ordered = sorted(nodes, key=position.__getitem__)
    results: list[Array] = []
    for draw in draws:
        values = compute(ordered, {start: draw})
        if values is None or end not in values:
            return None
        results.append(values[end])
    made = np.stack(results)
    if made.size < draws.size or not np.isfinite(made).all():
        return None
    for kind, function in functions.items():
        wanted = function(draws, axes)
        try:
            difference = made - wanted if not affine else _affine_residual(made, wanted)
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


def _with_affine(nodes: set[ir.Node], end: ir.Value, position: Mapping[ir.Node, int], taken: set[ir.Node]) -> ir.Value:
    """Takes in the scale and the bias that follow, once each and in this order."""
    for op in ("Mul", "Add"):
        reader = only_reader(end)
        if reader is None or reader not in position or reader in taken or reader.op_type != op or reader.domain != "":
            continue
        other = next((value for value in reader.inputs if value is not end), None)
        if other is None or constant_array(other) is None:
            continue
        nodes.add(reader)
        end = reader.outputs[0]
    return end
