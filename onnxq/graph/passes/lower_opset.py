"""Lowering the version of the standard operator set, for runtimes that read none newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx.defs
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.write_out import can_be_written, write
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import static_shape

__all__ = ["lower_opset", "newer_than"]

_MOVES = "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad QuantizeLinear "
_MOVES += "Reshape Scan Shape Size Squeeze Transpose Unsqueeze"
# Versions that only add types, inputs or attributes: what an older one can say means the same there
# (https://github.com/onnx/onnx/blob/main/docs/Changelog.md).
_ADDITIVE: dict[int, frozenset[str]] = {
    version: frozenset(names.split())
    for version, names in {
        20: "ConstantOfShape IsInf IsNaN ReduceMax ReduceMin",
        21: _MOVES,
        22: "Acos Acosh Asin Asinh Atan Atanh AveragePool Bernoulli Conv ConvTranspose Cos Cosh Det Dropout Elu "
        "EyeLike GRU GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample HardSigmoid HardSwish "
        "InstanceNormalization LSTM LpNormalization LpPool MaxPool Mish RNN RandomNormal RandomNormalLike "
        "RandomUniform RandomUniformLike RoiAlign Round Selu Sin Sinh Softplus Softsign Tan ThresholdedRelu",
        23: _MOVES,
        24: f"{_MOVES} SplitToSequence TopK",
        25: _MOVES,
        27: "Range",
        28: "BitShift Cast Celu Compress DepthToSpace DequantizeLinear Einsum OneHot Optional OptionalGetElement "
        "OptionalHasElement QuantizeLinear ReduceLogSum ReduceLogSumExp ReverseSequence SpaceToDepth Unique",
    }.items()
}
_SAMPLING, _RENAMED = 20, {"linear": "bilinear", "cubic": "bicubic"}
"""Opset from which on a GridSample takes volumes too, and the names that its modes had before, for pictures alone."""
_PICTURES = 4
"""Axes of pictures."""
_POOLS = ("AveragePool", "MaxPool")
_CEILING = 22
"""From here on ``ceil_mode`` counts no window that would start behind the input and its padding."""
_OLDEST = 19
"""Down to here the changes above are all that there are."""


def newer_than(model: ir.Model, most: int) -> list[ir.Node]:
    """The standard operators of a model that an opset, 19 or newer, cannot say.

    Args:
        model: shapes inferred.
        most: the opset.
    """
    current = model.opset_imports.get("", 0)
    if most < _OLDEST:
        return list(all_nodes(model))
    nodes = [node for node in all_nodes(model) if node.domain == ""]
    return [n for n in nodes if not _is_said(n, current, most) and not can_be_written(n, current)]


def lower_opset(model: ir.Model, most: int) -> list[Note]:
    """Lower the standard operator set to a version, where nothing is newer, see :func:`newer_than`.

    Gelu, Swish and GroupNormalization become older operators where they have to.

    Args:
        model: changed in place, shapes inferred. Its tensors keep their names and numbers.
        most: the version.
    """
    current, namer = model.opset_imports.get("", 0), Namer(model)
    for node in list(all_nodes(model)):
        if node.domain == "" and not _is_said(node, current, most):
            write(node, current, namer)
        elif node.op_type in _POOLS and node.domain == "" and most < _CEILING <= current:
            _pad_windows(node)
        elif node.op_type == "GridSample" and node.domain == "" and most < _SAMPLING <= current:
            mode = node.attributes.get_string("mode", "linear")
            node.attributes["mode"] = ir.AttrString("mode", _RENAMED.get(mode, mode))
    model.opset_imports[""] = most
    infer_shapes(model)
    return [Note("opset", "", f"lowered from {current} to {most}")]


def _pad_windows(node: ir.Node) -> None:
    """Write the windows of ``ceil_mode`` as padding, where an older opset would count one more than there are."""
    get, source, result = node.attributes, static_shape(node.inputs[0]), static_shape(node.outputs[0])
    plain = get.get_string("auto_pad", "NOTSET") == "NOTSET" and not get.get_int("count_include_pad", 0)
    if not get.get_int("ceil_mode", 0) or source is None or result is None or not plain:
        return
    kernel, count = get.get_ints("kernel_shape"), len(source) - 2
    strides, dilations = (get.get_ints(name, (1,) * count) for name in ("strides", "dilations"))
    pads = list(get.get_ints("pads", (0,) * 2 * count))
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    room = [source[k + 2] + pads[k] + pads[k + count] - reach[k] for k in range(count)]
    if all(-(-room[k] // strides[k]) + 1 == result[k + 2] for k in range(count)):
        return
    for k in range(count):
        pads[k + count] += max(0, (result[k + 2] - 1) * strides[k] - room[k])
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)


def _is_said(node: ir.Node, current: int, most: int) -> bool:
    """Whether the older version of a node's operator can say it, and means the same."""
    try:
        now, then = (onnx.defs.get_schema(node.op_type, version) for version in (current, most))
    except onnx.defs.SchemaError:
        return not onnx.defs.has(node.op_type)  # no such operator: not ours
    if now.since_version == then.since_version:
        return True
    changed = (v for v in range(most + 1, current + 1) if onnx.defs.get_schema(node.op_type, v).since_version == v)
    if any(node.op_type not in _ADDITIVE.get(version, frozenset()) for version in changed if not _named(node, version)):
        return False
    known = set(node.attributes) <= set(then.attributes) and len(node.inputs) <= then.max_input
    return known and all(_types(node.inputs, then.inputs)) and all(_types(node.outputs, then.outputs))


def _named(node: ir.Node, version: int) -> bool:
    """Whether all that a version changed of a node are names: of a GridSample's modes, of pictures."""
    if node.op_type != "GridSample" or version != _SAMPLING or node.inputs[0] is None:
        return False
    shape = node.inputs[0].shape
    return shape is not None and len(shape) == _PICTURES


def _types(values: Sequence[ir.Value | None], formal: Sequence[onnx.defs.OpSchema.FormalParameter]) -> Iterator[bool]:
    """Whether each operand has one of the types that it may have."""
    for index, value in enumerate(values):
        if value is not None and value.dtype is not None and isinstance(value.type, ir.TensorType) and formal:
            types = formal[min(index, len(formal) - 1)].types
            yield f"tensor({str(value.dtype).lower()})" in types
