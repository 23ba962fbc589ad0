"""What RKNN-Toolkit2's builder takes in no model, in float neither, or in no model with quantizers."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.checks.forms import TRAINING, Form, form_of, has, is_deep
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.values import constant_array, input_of, is_constant, rank_of, static_shape
from onnxq.options import Options

__all__ = ["is_of_heads", "lacks", "moves_little"]

_LONGEST = 31
"""Strides and sides of a Conv without a bias, beside other strides of 8 or more."""
_SELECT = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose results have sizes that depend on the numbers."""
_BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
"""Operators whose constant operands it makes int64, whatever they are."""


def lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Inputs of uint8 or without axes, what the builder takes in no model, and what in a float model alone."""
    found = []
    for value in model.graph.inputs:
        if value.dtype is ir.DataType.UINT8:
            what = "RKNN-Toolkit2 takes no uint8 input, in a float model neither"
            hint = "Take the Cast behind it out of the model: its input is float32 then, and may have the same numbers"
            found.append(Finding("warning", f"input {value.name!r}", what, hint))
        if rank_of(value) == 0:
            what = "RKNN-Toolkit2 runs no model with an input without axes, in float neither"
            found.append(Finding("warning", f"input {value.name!r}", what, "Give it one axis, of one number"))
    for node in all_nodes(model):
        if node.domain == "" and (none := form_of(node, _NOWHERE)) is not None:
            what = f"RKNN-Toolkit2 builds no model with {none} in it, in float neither"
            found.append(Finding("warning", describe(node), what, "Cut the model before it or after it"))
        if _is_of_distances(node):
            what = "RKNN-Toolkit2 may build no model with a Conv of one channel between Reshapes whose result is split"
            found.append(
                Finding("warning", describe(node), f"{what}, in float neither", "Cut the model before it or after it")
            )
        if node.op_type in ("Conv", "ConvTranspose") and node.domain == "" and (why := moves_little(node)):
            hint = "Cut the model behind it, and build that node in a float model of its own"
            found.append(Finding("warning", describe(node), why, hint))
        elif options.placement != "compute" and is_of_heads(node):
            what = "RKNN's builder may crash on multi-head attention with quantized operators around it"
            hint = "--placement compute leaves float all but layers with weights, which it builds"
            found.append(Finding("warning", describe(node), what, hint))
    return found


def _normalizes_several(node: ir.Node) -> bool:
    return node.attributes.get_int("axis", -1) not in (-1, _last_axis(node.inputs[0]))


def _picks_one_of_conv(gather: ir.Node) -> bool:
    value = gather.inputs[0]
    maker = value.producer() if value is not None else None
    return maker is not None and maker.op_type == "Conv" and maker.domain == "" and _is_scalar(gather.inputs[1])


_NOWHERE = (
    Form(("If", "Loop", "Scan", *_SELECT), "{}", lambda node: True),
    Form(("MaxPool",), "{} of five dimensions", is_deep),
    Form(("Resize",), "cubic {}", has("mode", "cubic")),
    Form(_BITS, "{} with a constant", lambda node: any(is_constant(operand) for operand in node.inputs)),
    Form(("LayerNormalization",), "{} over several axes", _normalizes_several),
    Form(("Gather",), "{} of a single index, without an axis, behind a Conv", _picks_one_of_conv),
    TRAINING,
)
"""What the builder takes in no model, also of floats alone."""


def _is_of_distances(node: ir.Node) -> bool:
    """Whether a Conv makes one channel of what was reshaped and transposed, and is reshaped and split behind."""
    if node.op_type != "Conv" or node.domain != "" or (static_shape(node.inputs[1]) or (0,))[0] != 1:
        return False
    value = node.inputs[0]
    for op in ("Softmax", "Transpose", "Reshape"):
        maker = value.producer() if value is not None else None
        if maker is not None and maker.op_type == op and maker.domain == "":
            value = maker.inputs[0]
        elif op != "Softmax":
            return False
    if value is not None and value.is_graph_input() and rank_of(value) == 3:
        return False
    return _is_reshaped_and_split(node)


def _is_reshaped_and_split(node: ir.Node) -> bool:
    """Whether the result of a node is reshaped, and of that several parts are taken."""
    for reshape in node.outputs[0].consumers():
        parts = [n.op_type for n in reshape.outputs[0].consumers() if n.op_type in ("Split", "Slice")]
        if reshape.op_type == "Reshape" and ("Split" in parts or len(parts) > 1):
            return True
    return False


def moves_little(node: ir.Node) -> str | None:
    """One of strides below 8 (of a ConvTranspose 8 at most), or below 32 with sides below 32 and without a bias."""
    step = max(node.attributes.get_ints("strides", ()), default=1)
    side = max((static_shape(node.inputs[1]) or ())[2:], default=1)
    bias = input_of(node, 2) is not None
    transposed = node.op_type == "ConvTranspose"
    if step <= (8 if transposed else 7) or not (bias or (not transposed and max(step, side) > _LONGEST)):
        return None
    what = "with a bias" if bias else f"of side {side}"
    return f"RKNN's builder fails on a {node.op_type} of stride {step} {what} in a model with quantizers"


def is_of_heads(node: ir.Node) -> bool:
    """Whether a node is a product of two activations of four axes."""
    if node.op_type != "MatMul" or node.domain != "" or any(is_constant(value) for value in node.inputs):
        return False
    return all(rank_of(value) == 4 for value in node.inputs)


def _last_axis(value: ir.Value | None) -> int:
    """The last axis of a tensor, from the front; -1 where its rank is not known."""
    return len(value.shape) - 1 if value is not None and value.shape is not None else -1


def _is_scalar(value: ir.Value | None) -> bool:
    array = constant_array(value)
    return array is not None and array.ndim == 0
