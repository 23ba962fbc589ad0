"""LayerNorm, RMSNorm and (log-)softmax written out: a tensor against a statistic of itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.recognition.recognize import ALLOWED, LIMIT, recognize
from onnxq.graph.recognition.region import REDUCTIONS, VIEWS, Array, axes_of, is_side_input
from onnxq.graph.values import constant_array, only_reader, scalar

__all__ = ["match_normalization"]

Match = tuple[str, set[ir.Node], ir.Value, ir.Value]


def match_normalization(anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node]) -> Match | None:
    """The group around the square root of a variance, or around the exponential of a softmax, if it is one.

    Args:
        anchor: any node.
        position: each node of the graph and its place.
        taken: nodes of groups found before.

    Returns:
        Kind, nodes, input and output. The input x of a normalization with scale and bias is the tensor before both.
    """
    if anchor.domain != "" or anchor in taken:
        return None
    if anchor.op_type == "Sqrt" or (anchor.op_type == "Pow" and scalar(anchor.inputs[1]) in (0.5, -0.5)):
        return _match_norm(anchor, position, taken)
    if anchor.op_type == "Exp":
        return _match_softmax(anchor, position, taken)
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
    while stack and len(seen) < LIMIT:
        current = stack.pop()
        if current in seen or current.domain != "":
            continue
        seen.add(current)
        if current.op_type in REDUCTIONS:
            found.append(current)
            continue
        if current.op_type not in ALLOWED:
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


def _match_norm(anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node]) -> Match | None:
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
            functions = {"layernorm": _layernorm, "rmsnorm": _rmsnorm}
            found = recognize(anchor, start, axes, functions, position, taken)
            if found is not None:
                kind, nodes, end = found
                end = _with_affine(nodes, end, position, taken)
                return kind, nodes, start, end
    return None


def _match_softmax(anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node]) -> Match | None:
    total = next((use.node for use in anchor.outputs[0].uses() if use.node.op_type == "ReduceSum"), None)
    if total is None or total not in position:
        return None
    start = anchor.inputs[0]
    shifted = start.producer() if start is not None else None
    if shifted is not None and shifted.op_type == "Sub" and shifted.domain == "":
        peak = _through_views(shifted.inputs[1])
        if peak is not None and peak.op_type in ("GlobalMaxPool", "ReduceMax") and peak.inputs[0] is shifted.inputs[0]:
            start = shifted.inputs[0]
    axes = axes_of(total)
    if start is None or axes is None:
        return None
    functions = {"softmax": _softmax, "logsoftmax": _log_softmax}
    found = recognize(total, start, axes, functions, position, taken, affine=False)
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
