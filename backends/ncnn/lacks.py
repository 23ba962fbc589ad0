"""What ncnn lacks, or computes otherwise, of what pnnx converts: operators, forms of them, types of inputs."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.ncnn.rewrites import ONE_AXIS
from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.values import constant_array, is_constant
from onnxq.options import Options
from onnxq.rows import plain_max_pool

__all__ = ["ABSENT", "lacks"]

_NAMES = (
    "AffineGrid And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast "
    "CenterCropPad Col2Im Compress ConvInteger CumSum DFT DeformConv DequantizeLinear Det DynamicQuantizeLinear Equal "
    "GatherElements GatherND GlobalLpPool Greater GreaterOrEqual HammingWindow HannWindow Hardmax If IsInf IsNaN Less "
    "LessOrEqual Loop LpNormalization LpPool MatMulInteger MaxUnpool Mean MelWeightMatrix NegativeLogLikelihoodLoss "
    "NonMaxSuppression NonZero Not OneHot OptionalGetElement Or QLinearConv QLinearMatMul QuantizeLinear "
    "ReverseSequence STFT Scan ScatterElements ScatterND SoftmaxCrossEntropyLoss Softsign SplitToSequence "
    "TensorScatter TfIdfVectorizer ThresholdedRelu Tile TopK Trilu Unique Where Xor"
)
ABSENT = frozenset(_NAMES.split())
"""Operators of which pnnx 20261020 makes what ncnn 1.0.20261020 does not load, each tried alone."""
_BY_INPUT = ("ReduceLogSum", "ReduceMax", "ReduceMin", "ReduceSumSquare")
"""Reductions that pnnx does not convert where their axes are an input, as from opset 18 on."""
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.INT64})
"""Types of inputs that pnnx can be told, and ncnn runs."""
_RECURRENT = ("GRU", "LSTM", "RNN")
_WINDOWED = ("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
"""Operators whose first axis pnnx takes for the batch, of which ncnn has none."""
_CUT = "Cut the model before it or after it"


def lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Inputs of other types, and what ncnn does not load or computes otherwise once pnnx has converted it."""
    inputs = [
        Finding("warning", f"input {value.name!r}", *_of_type(value.dtype))
        for value in model.graph.inputs
        if value.dtype is not None and value.dtype not in _TYPES
    ]
    return inputs + warn_of_nodes(model, _said)


def _of_type(dtype: ir.DataType) -> tuple[str, str]:
    if dtype is ir.DataType.DOUBLE:
        return "ncnn does not run what pnnx makes of double inputs", "Export the model in float32"
    return f"pnnx has no {dtype.name.lower()} inputs", "Give it as int32"


def _said(node: ir.Node) -> tuple[str, str] | None:
    if node.domain != "":
        return None
    if node.op_type in ABSENT:
        return f"ncnn has no {node.op_type}: it does not load what pnnx makes of the model", _CUT
    if node.op_type in _BY_INPUT:
        return _extreme(node)
    if (form := _absent_form(node)) is not None:
        return f"ncnn has no {form}: it does not load what pnnx makes of the model", _CUT
    if (form := _wrong_form(node)) is not None:
        return f"pnnx converts a {form} wrongly, without a word", "Write it otherwise, or cut the model there"
    return None


def _extreme(node: ir.Node) -> tuple[str, str] | None:
    """A reduction that pnnx converts where one axis, or for some several, is an attribute."""
    several = node.op_type in ("ReduceMax", "ReduceMin") and len(node.attributes.get_ints("axes", ())) > 1
    if not several and len(node.inputs) < 2:
        return None
    how = "of several axes" if several else "whose axes are an input"
    hint = _CUT if several else "Export the model with opset 17"
    return f"ncnn has no {node.op_type} {how}: it does not load what pnnx makes of the model", hint


def _absent_form(node: ir.Node) -> str | None:
    """A form of an operator that ncnn does not load, though it has others."""
    get, op = node.attributes, node.op_type
    automatic, pads = get.get_string("auto_pad", "NOTSET"), get.get_ints("pads", ())
    uneven = pads[: len(pads) // 2] != pads[len(pads) // 2 :]
    if op == "MaxPool" and (plain_max_pool(node) or any(step != 1 for step in get.get_ints("dilations", ()))):
        return "MaxPool that gives indices" if plain_max_pool(node) else "MaxPool with dilations"
    if op in ("AveragePool", "ConvTranspose") and uneven:
        return f"{op} with other padding at the end than at the beginning"
    if (op == "Conv" and automatic == "SAME_LOWER") or (op == "ConvTranspose" and automatic.startswith("SAME")):
        return f"{op} with auto_pad {automatic}"
    if op == "DepthToSpace" and get.get_string("mode", "DCR") == "DCR":
        return "DepthToSpace of mode DCR"
    if op in _RECURRENT and any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return f"{op} whose last state is read (forward, it is the last step of the first output)"
    if (
        op == "Gather"
        and not is_constant(node.inputs[1])
        and (get.get_int("axis", 0) != 0 or not is_constant(node.inputs[0]))
    ):
        return "Gather at computed indices but of rows of a constant"
    if op == "Selu" and {"alpha", "gamma"} & set(get):
        return "Selu with constants of its own"
    if op == "Slice" and any(step > 1 for step in _steps(node)):
        return "Slice that steps"
    trains = op == "BatchNormalization" and get.get_int("training_mode", 0) == 1
    return "BatchNormalization in training mode" if trains else None


def _wrong_form(node: ir.Node) -> str | None:
    """A form of an operator that ncnn computes otherwise than it is defined."""
    get, op = node.attributes, node.op_type
    if op in ("AveragePool", "MaxPool") and get.get_string("auto_pad", "NOTSET").startswith("SAME"):
        return f"{op} with auto_pad" if any(step != 1 for step in get.get_ints("strides", ())) else None
    if op == "Gather" and (found := constant_array(node.inputs[1])) is not None and found.ndim == 1:
        return "Gather of a constant list of indices"
    if op == "GridSample" and get.get_string("mode", "") == "cubic":
        return "GridSample of mode cubic"
    if op in ONE_AXIS and _is_deep(node) and len(node.inputs) > 1:
        axes = constant_array(node.inputs[1])
        return (
            f"{op} of one axis that is an input, in five dimensions," if axes is not None and axes.size == 1 else None
        )
    if op == "Slice" and any(step < 0 for step in _steps(node)):
        return "Slice that steps backwards"
    if op == "GRU" and get.get_int("linear_before_reset", 0) == 0:
        return "GRU without linear_before_reset"
    if op in _RECURRENT and (maker := _of_several(node)) is not None:
        return f"{op} behind a {maker.op_type} of several samples, frames for example,"
    if op == "LayerNormalization" and not _is_last(node):
        return "LayerNormalization over several axes"
    if op == "SpaceToDepth":
        return op
    if op == "Pad" and get.get_string("mode", "constant") == "wrap":
        return "Pad that wraps around"
    if op == "Resize":
        nearest = get.get_string("mode", "nearest") == "nearest"
        unasked = get.get_string("coordinate_transformation_mode", "half_pixel") == "asymmetric"
        if nearest and get.get_string("nearest_mode", "round_prefer_floor") == "floor" and not unasked:
            return "Resize to the nearest element below, by other coordinates than asymmetric ones"
        return "Resize that interpolates by asymmetric coordinates" if unasked and not nearest else None
    return None


def _of_several(recurrent: ir.Node) -> ir.Node | None:
    """A convolution or pooling of more than one sample that a recurrent layer depends on: their axis becomes its steps.

    pnnx keeps that axis for the batch, and the layer runs over other axes then. Without one ncnn is right.
    """
    pending, seen = [recurrent.inputs[0]], set[ir.Value]()
    while pending:
        value = pending.pop()
        maker = value.producer() if value is not None and value not in seen else None
        if maker is None or value is None:
            continue
        seen.add(value)
        data = maker.inputs[0] if maker.inputs else None
        samples = data.shape[0] if data is not None and data.shape else None
        if maker.domain == "" and maker.op_type in _WINDOWED and isinstance(samples, int) and samples > 1:
            return maker
        pending += maker.inputs
    return None


def _is_last(node: ir.Node) -> bool:
    """Whether a LayerNormalization is one over the last axis, as far as is known."""
    axis, data = node.attributes.get_int("axis", -1), node.inputs[0]
    return axis == -1 or data is None or data.shape is None or axis == len(data.shape) - 1


def _steps(node: ir.Node) -> tuple[int, ...]:
    """Of a Slice, where they are known."""
    found = constant_array(node.inputs[4]) if len(node.inputs) > 4 else None
    return () if found is None else tuple(int(step) for step in found.reshape(-1))


def _is_deep(node: ir.Node) -> bool:
    """Whether a node reads a tensor of more than four dimensions."""
    value = node.inputs[0]
    return value is not None and value.shape is not None and len(value.shape) > 4
