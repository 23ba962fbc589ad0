"""What TensorRT refuses a model for, float or quantized: operators, forms of them, and types."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.checks.forms import OTHER_NORMS, TRAINING, WITH_INDICES, Form, form_of, in_steps
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.values import constant_array, input_of
from onnxq.options import Options

__all__ = ["ABSENT", "lacks"]

_NAMES = (
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger CumProd DFT DeformConv Det DynamicQuantizeLinear ImageDecoder MatMulInteger "
    "MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement "
    "OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat "
    "StringNormalizer StringSplit SwiGLU TfIdfVectorizer Unique"
)
ABSENT = frozenset(_NAMES.split())
"""Operators of the standard up to opset 26 that the parser of TensorRT-RTX 1.7.1 has not, as it says when asked."""
_UNBUILT = frozenset({"NonMaxSuppression", "NonZero"})
"""Operators that it parses, and TensorRT-RTX 1.7.1 has no kernel of."""
_TYPES = frozenset({ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64})
"""Types that it has for no tensor."""
_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
"""Those of a Resize that it has."""
_MOST = 3840
"""The largest k of a TopK."""
_CUT = "Cut the model before it or after it"


def lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Inputs of a type that TensorRT has not, and nodes that it refuses a model for."""
    inputs = [
        Finding("warning", f"input {value.name!r}", _of_type(value.dtype), "Give it as int32 or float32")
        for value in model.graph.inputs
        if value.dtype in _TYPES
    ]
    return inputs + warn_of_nodes(model, _said)


def _of_type(dtype: ir.DataType | None) -> str:
    assert dtype is not None
    return f"TensorRT has no tensors of {dtype.name.lower()}, and refuses the model, float or quantized"


def _said(node: ir.Node) -> tuple[str, str] | None:
    """What is said of a node for which the model is refused, and what to do; None of all others."""
    if node.domain != "":
        return None
    if node.op_type in ABSENT:
        return f"TensorRT's parser has no {node.op_type}, and refuses a model with one, float or quantized", _CUT
    if node.op_type in _UNBUILT:
        what = f"TensorRT-RTX has no kernel of {node.op_type}, and builds no model with one, float or quantized"
        return f"{what}; TensorRT itself was not tried", _CUT
    if (form := _refused(node)) is not None:
        return f"TensorRT's parser refuses a model with a {form}, float or quantized", _CUT
    made = next((value for value in node.outputs if value.dtype in _TYPES), None)
    if made is not None:
        return _of_type(made.dtype), "Compute it in int32"
    if any(value.dtype is ir.DataType.UINT8 and value.uses() for value in node.outputs):
        what = "TensorRT has tensors of uint8 at inputs and outputs of a model alone, and refuses others"
        return what, "Compute it in int32"
    return None


def _refused(node: ir.Node) -> str | None:
    """A form of an operator that the parser does not take, though it has others."""
    return _resize(node) if node.op_type == "Resize" else form_of(node, _FORMS)


def _trains(dropout: ir.Node) -> bool:
    return _is_true(input_of(dropout, 2))


def _is_true(value: ir.Value | None) -> bool:
    array = constant_array(value)
    return array is not None and bool(array.any())


def _resize(node: ir.Node) -> str | None:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode not in _COORDINATES:
        return f"Resize by {mode}"
    return "Resize with antialiasing" if node.attributes.get_int("antialias", 0) == 1 else None


def _takes_more(top_k: ir.Node) -> bool:
    k = constant_array(top_k.inputs[1])
    return k is not None and bool(k.size) and int(k.reshape(-1)[0]) > _MOST


_FORMS = (
    TRAINING,
    Form(("AveragePool", "MaxPool"), "pool with dilations", in_steps("dilations")),
    WITH_INDICES,
    Form(("Dropout",), "{} in training mode", _trains),
    Form(
        ("LayerNormalization",),
        "{} that gives its mean or deviation",
        lambda node: any(value.name for value in node.outputs[1:]),
    ),
    OTHER_NORMS,
    Form(("LpPool",), "{} over one axis", lambda node: len(node.attributes.get_ints("kernel_shape", ())) == 1),
    Form(
        ("ConvTranspose",),
        "{} with both strides and dilations",
        lambda node: in_steps("strides")(node) and in_steps("dilations")(node),
    ),
    Form(
        ("ScatterElements", "ScatterND"),
        "{} that reduces",
        lambda node: node.attributes.get_string("reduction", "none") != "none",
    ),
    Form(("Loop",), "{} without a condition", lambda node: node.inputs[1] is None),
    Form(("TopK",), f"{{}} of more than {_MOST}", _takes_more),
)
"""What the parser refuses a model for, though it takes other forms of the operator."""
