"""What OpenVINO multiplies wrongly in integers, or has no kernel for."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.openvino.integers import LARGEST, MATRICES, MOVES
from onnxq.backends.openvino.passed_on import joined_elsewhere, why_not_passed_on
from onnxq.backends.openvino.sums import summed_wrongly
from onnxq.graph.values import constant_array, input_of, is_constant, rank_of, static_shape

__all__ = [
    "scaled_twice",
    "why_no_product",
    "why_not_convolved",
    "why_not_matmul",
    "why_not_multiplied",
    "why_not_transposed",
]

_WRONG_STRIDE = 3
"""Along the last axis; of ConvTranspose, for some sizes of the output."""
_SCALED = ("Div", "Mul")


def why_not_multiplied(node: ir.Node) -> str | None:
    """One behind no GlobalMaxPool, ReduceMax or ReduceMin in float, in which OpenVINO loses what it quantizes."""
    for value in node.inputs[:2]:
        pending = [] if value is None or is_constant(value) else [value]
        if pending and (why := summed_wrongly(value)) is not None:
            return why
        for each in pending:
            maker = each.producer()
            if maker is None:
                continue
            if maker.op_type in LARGEST and why_not_passed_on(maker) is not None:
                return f"OpenVINO computes '{maker.name}' wrongly where it is to write integers"
            if maker.op_type in (*MOVES, "MaxPool", "Resize"):
                pending += [v for v in maker.inputs[:1] if v is not None]
            elif maker.op_type == "Concat":
                pending += [v for v in maker.inputs if v is not None]
    return None


def why_not_convolved(node: ir.Node) -> str | None:
    """One that reads no Concat along another axis than channels alone, but of numbers that are never negative."""
    data = node.inputs[0]
    if data is not None and joined_elsewhere(data, 1):
        return "OpenVINO has no integer kernel for a Concat along another axis than channels in front of it"
    return why_not_multiplied(node)


def why_not_matmul(node: ir.Node) -> str | None:
    """One of matrices: of a vector in integers OpenVINO gives a matrix of one row."""
    if any(rank_of(value) == 1 for value in node.inputs[:1]):
        return "OpenVINO gives a quantized product of a vector another shape"
    if any(is_constant(value) for value in node.inputs) and _has_axis_behind(node.outputs[0]):
        return "OpenVINO applies its scales along another axis where one is added behind the last"
    return why_not_multiplied(node)


def _has_axis_behind(value: ir.Value) -> bool:
    """Whether factors and zeros at most stand between matrices and an axis of one element added behind their last.

    OpenVINO moves the scales behind what gives them the axis, and does not move them along: a square matrix has the
    scales of its columns at its rows, and other shapes do not fit.
    """
    if value.shape is None or len(value.shape) < MATRICES or value.shape[-1] == 1:
        return False
    for use in value.uses():
        result = use.node.outputs[0]
        if (use.node.op_type in ("Neg", *_SCALED) or _adds_nothing(use.node)) and _has_axis_behind(result):
            return True
        if use.node.op_type in ("Reshape", "Unsqueeze") and result.shape is not None:
            rank = len(value.shape)
            if result.shape[:rank] == value.shape[:] and set(result.shape[rank:]) == {1}:
                return True
    return False


def _adds_nothing(node: ir.Node) -> bool:
    """Whether a node adds zeros, which OpenVINO leaves out: the bias of a layer that was not trained, say."""
    arrays = [constant_array(value) for value in node.inputs] if node.op_type == "Add" else []
    return any(array is not None and not array.any() for array in arrays)


def why_no_product(node: ir.Node) -> str | None:
    """One that one operator reads, or of sizes that are known and none of them a Loop; and of matrices."""
    return why_not_matmul(node) or _scaled_twice(node)


def why_not_transposed(node: ir.Node) -> str | None:
    """One without groups, that moves by other than 3 along its last axis."""
    if node.attributes.get_int("group", 1) != 1:
        return "OpenVINO has no integer kernel for its groups"
    if node.attributes.get_ints("strides", (1,))[-1] == _WRONG_STRIDE:
        return "OpenVINO computes strides of 3 wrongly in integers, at some sizes"
    if (why := _why_no_kernel(node)) is not None:
        return why
    bias = constant_array(input_of(node, 2))
    return why_not_multiplied(node) or (None if bias is not None and bias.any() else _scaled_twice(node))


def _why_no_kernel(node: ir.Node) -> str | None:
    weight = static_shape(node.inputs[1])
    kernel = weight[2:] if weight is not None else ()
    strides, dilations = (node.attributes.get_ints(name, (1,) * len(kernel)) for name in ("strides", "dilations"))
    reach = [(size - 1) * step for size, step in zip(kernel, dilations, strict=False)]
    if any(step > most + 1 for step, most in zip(strides, reach, strict=False)):
        return "OpenVINO has no integer kernel for strides beyond its kernel"
    if any(pad > most for pad, most in zip(node.attributes.get_ints("pads", ()), [*reach, *reach], strict=False)):
        return "OpenVINO computes it wrongly in integers where it cuts off more than its kernel reaches"
    return None


def _scaled_twice(node: ir.Node) -> str | None:
    if not scaled_twice(node.outputs[0]):
        return None
    what = "OpenVINO applies its scale once for each operator that reads it"
    return f"{what}, where sizes are free (--shape fixes them) or a Loop reads it"


def scaled_twice(value: ir.Value) -> bool:
    """Whether the scale of what an operator without a bias multiplies is applied for each of its readers.

    It is where there are several, and sizes are free, or a Loop is one of them or has one in its body.
    """
    maker = value.producer()
    home = maker.graph if maker is not None else None
    looped = any(use.node.op_type == "Loop" or use.node.graph is not home for use in value.uses())
    return (looped or static_shape(value) is None) and _fans_out(value)


def _fans_out(value: ir.Value) -> bool:
    """Whether several operators read a tensor, or its multiple by a constant; a model output counts as one."""
    readers = value.uses()
    if len(readers) + value.is_graph_output() > 1:
        return True
    for use in readers:
        if use.node.op_type in _SCALED and is_constant(use.node.inputs[1 - use.idx]):
            return _fans_out(use.node.outputs[0])
    return False
