"""What passes integers on in OpenVINO: data movement, Concat, residual Adds; and on which grids."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.backends.openvino.integers import LARGEST, MOVES, MULTIPLY, PASS, POOLS, from_integers
from onnxq.backends.openvino.sums import summed_wrongly
from onnxq.graph.passes.strides_in_front import picks_elements
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.values import is_constant
from onnxq.rows import nearest, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = [
    "UINT8",
    "grid_by_weights",
    "joined_elsewhere",
    "shortcut",
    "why_no_shortcut",
    "why_not_joined",
    "why_not_passed_on",
    "without_zero_point",
]

_PARTS = ("Gather", "Slice", "Split")
_BY_CHANNELS = ("Conv", "ConvTranspose", "Add", *POOLS)
"""What takes the zero points that a Concat of channels leaves behind."""
_SPATIAL = 4
"""Axes of pictures."""
UINT8 = QuantSpec(signed=False, symmetric=False)
_INT8 = QuantSpec(signed=True, symmetric=True)


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """All that reads a tensor, moved or joined with others before or not: node, position, the tensor it reads."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        for use in current.uses():
            yield use.node, use.idx, current
            if use.node.op_type in PASS and (use.idx == 0 or use.node.op_type == "Concat"):
                pending += [v for v in use.node.outputs if v not in seen]
                seen.update(use.node.outputs)


def _starts_at_zero(value: ir.Value) -> bool:
    """Whether the zero point of a tensor's uint8 grid is 0, whatever shares that grid with it."""
    if not cannot_be_negative(value):
        return False
    node, first = value.producer(), value
    while node is not None and node.op_type in (*MOVES, *LARGEST, "MaxPool") and node.inputs[0] is not None:
        first = node.inputs[0]
        node = first.producer()
    joined = {reader for reader, _, _ in _readers(first) if reader.op_type == "Concat"}
    return all(cannot_be_negative(other) for reader in joined for other in reader.inputs)


def without_zero_point(value: ir.Value) -> QuantSpec:
    """The grid of what only has kernels for zero point 0; behind Relu the zero point of a uint8 is 0 too."""
    return UINT8 if _starts_at_zero(value) else _INT8


def _max_pool(node: ir.Node) -> str | None:
    if any(step != 1 for step in node.attributes.get_ints("dilations", ())):
        return "OpenVINO has no integer kernel for its dilations"
    return plain_max_pool(node)


def why_not_passed_on(node: ir.Node) -> str | None:
    """One that an integer operator reads, on the grid in which it is moved."""
    if node.op_type == "Resize" and (why := nearest(node)) is not None:
        return why
    if node.op_type == "MaxPool" and (why := _max_pool(node)) is not None:
        return why
    if (node.op_type in _PARTS or picks_elements(node)) and not from_integers(node.inputs[0]):
        return "only a part of its input is needed in integers: quantized after it"
    wanted = False
    for reader, position, value in (r for output in node.outputs for r in _readers(output)):
        op = reader.op_type
        product = op == "MatMul" and not any(is_constant(v) for v in reader.inputs)
        if product or (op == "ConvTranspose" and position == 0):
            if not _starts_at_zero(value):
                return f"node '{reader.name}' needs zero point 0: quantized just before it"
            wanted = True
        elif op == "Add":
            wanted = wanted or position in shortcut(reader)
        elif op in POOLS or (op in MULTIPLY and position == 0):
            wanted = True
    return next(filter(None, map(summed_wrongly, node.outputs)), None) if wanted else "no integer operator reads it"


def why_not_joined(node: ir.Node) -> str | None:
    """One that an integer operator reads, along its channels; what needs no zero point may be joined along any axis.

    OpenVINO makes a vector of zero points of the one that all branches share, along the axis of the Concat. It refuses
    the model where a matrix product has to take them along another axis than its last, and computes a convolution in
    float that has them along another than its second.
    """
    if (why := why_not_passed_on(node)) is not None or all(cannot_be_negative(v) for v in node.inputs):
        return why
    pending = [node.outputs[0]]
    for value in pending:
        for use in value.uses():
            reader = use.node
            axis = -1 if _by_weights(reader) else 1
            if (_by_weights(reader) or reader.op_type in _BY_CHANNELS) and _joined(value, axis) is not None:
                return f"'{reader.name}' cannot take its zero points: it joins along another axis than channels"
            if reader.op_type in (*MOVES, "MaxPool", "Resize", *LARGEST) and use.idx == 0:
                pending += reader.outputs
    return None


def joined_elsewhere(value: ir.Value, axis: int) -> bool:
    """Whether a tensor is a Concat along another axis than this, whose branches OpenVINO quantizes one by one.

    It does where nothing reads the Concat in float, and then keeps a vector of zero points, see `why_not_joined`.

    Args:
        value: what an operator multiplies.
        axis: of its channels.
    """
    node = _joined(value, axis)
    if node is None or node.outputs[0].is_graph_output() or all(cannot_be_negative(v) for v in node.inputs):
        return False
    readers = [use.node for use in node.outputs[0].uses()]
    return all(r.op_type in MULTIPLY or (r.op_type in PASS and why_not_passed_on(r) is None) for r in readers)


def _joined(value: ir.Value, axis: int) -> ir.Node | None:
    """The Concat that makes a tensor, moved or not, along another axis than what becomes this one.

    Moved, it fits along the second axis of four or more: of others OpenVINO makes floats, or another shape.
    """
    node, moved = value.producer(), False
    wanted = axis % len(value.shape) if value.shape is not None else None
    while node is not None and node.op_type in (*MOVES, "MaxPool", "Resize") and node.inputs[0] is not None:
        if node.op_type == "Transpose" and wanted is not None and "perm" in node.attributes:
            wanted = node.attributes.get_ints("perm")[wanted]
        elif node.op_type in MOVES:
            wanted = None
        moved = moved or node.op_type in MOVES
        node = node.inputs[0].producer()
    shape = node.outputs[0].shape if node is not None and node.op_type == "Concat" else None
    if node is None or shape is None:
        return None
    at = node.attributes.get_int("axis", 1) % len(shape)
    fits = wanted in (None, at) and (not moved or (at == 1 and len(shape) >= _SPATIAL))
    return None if fits else node


def grid_by_weights(value: ir.Value) -> QuantSpec:
    """The grid of what is multiplied by a constant matrix: without a zero point where it is joined along other axes."""
    return _INT8 if joined_elsewhere(value, -1) else UINT8


def _by_weights(node: ir.Node) -> bool:
    return node.op_type == "Gemm" or (node.op_type == "MatMul" and any(is_constant(v) for v in node.inputs))


def _own_convolution(value: ir.Value | None) -> bool:
    """Whether a tensor is the output of a convolution that nothing else reads: it computes the Add as well."""
    node = value.producer() if value is not None else None
    return node is not None and node.op_type == "Conv" and value is not None and len(value.uses()) == 1


def shortcut(node: ir.Node) -> tuple[int, ...]:
    """Position of the branch of a residual Add that is quantized; none where it is no such Add."""
    own = [k for k in (0, 1) if _own_convolution(node.inputs[k])]
    if len(own) != 1 or is_constant(node.inputs[1 - own[0]]):
        return ()
    return (1 - own[0],) if from_integers(node.inputs[1 - own[0]]) else ()


def why_no_shortcut(node: ir.Node) -> str | None:
    """A residual Add that a convolution computes, with integers in its other branch: that branch is quantized."""
    if branch := shortcut(node):
        return summed_wrongly(node.inputs[branch[0]])
    return "not a residual Add (one branch from a convolution used only here, the other quantized)"
