"""What ncnn lacks, or computes otherwise, of what pnnx converts: operators, forms of them, types of inputs."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.ncnn.rewrites import ONE_AXIS
from onnxq.backends.ncnn.steps import RECURRENT, wrong_steps
from onnxq.backends.ncnn.views import too_many_axes
from onnxq.checks.findings import Finding
from onnxq.checks.forms import TRAINING, WITH_INDICES, WRAPPING, Form, form_of, has, in_steps, is_deep
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.values import constant_array, input_of, is_constant, rank_of
from onnxq.options import Options

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
    if (form := form_of(node, _ABSENT_FORMS)) is not None:
        return f"ncnn has no {form}: it does not load what pnnx makes of the model", _CUT
    if (why := too_many_axes(node)) is not None:
        return f"ncnn has no {node.op_type} {why}: it does not load what pnnx makes of the model", _CUT
    if (form := form_of(node, _WRONG)) is not None:
        return f"pnnx converts a {form} wrongly, without a word", "Write it otherwise, or cut the model there"
    if (why := wrong_steps(node)) is not None:
        hint = "Have the steps in the second axis in front of it (batch_first=True in torch), or cut the model there"
        return f"pnnx converts a {node.op_type} {why} wrongly, without a word", hint
    return None


def _extreme(node: ir.Node) -> tuple[str, str] | None:
    """A reduction that pnnx converts where one axis, or for some several, is an attribute."""
    several = node.op_type in ("ReduceMax", "ReduceMin") and len(node.attributes.get_ints("axes", ())) > 1
    if not several and len(node.inputs) < 2:
        return None
    how = "of several axes" if several else "whose axes are an input"
    hint = _CUT if several else "Export the model with opset 17"
    return f"ncnn has no {node.op_type} {how}: it does not load what pnnx makes of the model", hint


def _unevenly_padded(node: ir.Node) -> bool:
    pads = node.attributes.get_ints("pads", ())
    return pads[: len(pads) // 2] != pads[len(pads) // 2 :]


def _gives_a_state(node: ir.Node) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs[1:])


def _gathers_by_computed(node: ir.Node) -> bool:
    rows_of_constant = node.attributes.get_int("axis", 0) == 0 and is_constant(node.inputs[0])
    return not is_constant(node.inputs[1]) and not rows_of_constant


def _gathers_of_no_table(node: ir.Node) -> bool:
    data, indices = node.inputs[0], node.inputs[1]
    single = indices is not None and indices.shape is not None and not len(indices.shape)
    table = rank_of(data) == 2 and not single
    return is_constant(data) and not is_constant(indices) and not table


def _gathers_a_list(node: ir.Node) -> bool:
    found = constant_array(node.inputs[1])
    return found is not None and found.ndim == 1


def _reduces_one_axis_of_five(node: ir.Node) -> bool:
    axes = constant_array(input_of(node, 1))
    return is_deep(node) and axes is not None and axes.size == 1


def _is_asymmetric(node: ir.Node) -> bool:
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "asymmetric"


def _is_nearest(node: ir.Node) -> bool:
    return node.attributes.get_string("mode", "nearest") == "nearest"


def _takes_element_below(node: ir.Node) -> bool:
    below = node.attributes.get_string("nearest_mode", "round_prefer_floor") == "floor"
    return below and _is_nearest(node) and not _is_asymmetric(node)


_ABSENT_FORMS = (
    WITH_INDICES,
    Form(("MaxPool",), "{} with dilations", in_steps("dilations")),
    Form(("AveragePool", "ConvTranspose"), "{} with other padding at the end than at the beginning", _unevenly_padded),
    Form(("Conv", "ConvTranspose"), "{} with auto_pad SAME_LOWER", has("auto_pad", "SAME_LOWER")),
    Form(("ConvTranspose",), "{} with auto_pad SAME_UPPER", has("auto_pad", "SAME_UPPER")),
    Form(("DepthToSpace",), "{} of mode DCR", has("mode", "DCR", default="DCR")),
    Form(RECURRENT, "{} whose last state is read (forward, it is the last step of the first output)", _gives_a_state),
    Form(("Gather",), "{} at computed indices but of rows of a constant", _gathers_by_computed),
    Form(("Selu",), "{} with constants of its own", lambda node: bool({"alpha", "gamma"} & set(node.attributes))),
    Form(("Slice",), "{} that steps", lambda node: any(step > 1 for step in _steps(node))),
    TRAINING,
)
"""What ncnn does not load, though it has other forms of the operator."""

_WRONG = (
    Form(
        ("AveragePool", "MaxPool"),
        "{} with auto_pad",
        lambda node: has("auto_pad", "SAME_LOWER", "SAME_UPPER")(node) and in_steps("strides")(node),
    ),
    Form(("Gather",), "{} of a constant list of indices", _gathers_a_list),
    Form(("Gather",), "{} at computed indices of a constant that is no table of rows", _gathers_of_no_table),
    Form(("GridSample",), "{} of mode cubic", has("mode", "cubic")),
    Form(ONE_AXIS, "{} of one axis that is an input, in five dimensions,", _reduces_one_axis_of_five),
    Form(("Slice",), "{} that steps backwards", lambda node: any(step < 0 for step in _steps(node))),
    Form(
        ("GRU",), "{} without linear_before_reset", lambda node: node.attributes.get_int("linear_before_reset", 0) == 0
    ),
    Form(("LayerNormalization",), "{} over several axes", lambda node: not _is_last(node)),
    Form(("SpaceToDepth",), "{}", lambda node: True),
    WRAPPING,
    Form(
        ("Resize",), "{} to the nearest element below, by other coordinates than asymmetric ones", _takes_element_below
    ),
    Form(
        ("Resize",),
        "{} that interpolates by asymmetric coordinates",
        lambda node: _is_asymmetric(node) and not _is_nearest(node),
    ),
)
"""What ncnn computes otherwise than it is defined."""


def _is_last(node: ir.Node) -> bool:
    """Whether a LayerNormalization is one over the last axis, as far as is known."""
    axis, data = node.attributes.get_int("axis", -1), node.inputs[0]
    return axis == -1 or data is None or data.shape is None or axis == len(data.shape) - 1


def _steps(node: ir.Node) -> tuple[int, ...]:
    """Of a Slice, where they are known."""
    found = constant_array(input_of(node, 4))
    return () if found is None else tuple(int(step) for step in found.reshape(-1))
