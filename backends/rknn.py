"""Rockchip NPUs by RKNN-Toolkit2: QDQ at opset 19 or below, uint8 activations, int8 weights per channel.

RKNN-Toolkit2 takes a QDQ model as one trained for quantization (``build(do_quantization=False)``) and has
QuantizeLinear and DequantizeLinear of the standard domain only, 8 bits wide. A model of a newer opset is lowered, where
its operators are in 19 too, or are written out (Gelu, Swish, GroupNormalization, and what its page lists). The builder
may hang or crash, so it is asked in a process of its own. A Relu stays in the graph: where a convolution is added to
something, the builder fuses the two and drops the quantizer between, and with it a Relu that only its saturation
computes (verified). A Sigmoid or Softmax that only makes a model output stays float: the NPU has 16-bit floats beside
integers.

Verified in the simulator of RKNN-Toolkit2 2.5.0 (rk3588), operator by operator: at most 2 steps of the output from
onnxruntime, but ReduceMean, of which it rounds sums its own way (up to 8 steps). Of whole networks, each layer from
equal codes, some convolutions are off by an offset for each channel, of up to 4 steps in a ResNet and 3 in a network of
speech embeddings; in EfficientNet-Lite0 one by channels with the Clip behind it was up to 20 steps off. The means of
AveragePool and GlobalAveragePool have the step of what they are taken of, whatever quantizer stands behind them: they
are tied to it here, so that the numbers in onnxruntime are those of the simulator. The builder hangs on a quantized
Gemm or MatMul of two axes and more than one row, and on a quantized MatMul of three axes: those stay float here, which
it builds. It hangs where a quantized Transpose of a model input of three axes stands before a quantized Conv: that
Transpose stays float. A Conv that moves by 8 or more and has a bias or a side above 31, or moves by more than 31 (a
ConvTranspose: by more than 8 with a bias), it builds in a float model alone: quantized it crashes there, and float
among quantized operators it ends with a KeyError; ``onnxq check`` names such nodes, and inputs of uint8 and what
selects (NonMaxSuppression, NonZero, Compress, Unique), which it takes in no model. It ends with one too at a ReduceL2
that reads a float tensor among quantized operators, the output of a Gelu say, and builds one that is quantized.
Multi-head attention may crash it: in a small vision transformer it crashed where any two of these were quantized
together, its Softmax and products, and the Adds behind a MatMul that stays float, residuals among them. All stay float
here, and it builds that one and a MobileViT, but no EdgeNeXt: there ``--placement compute`` is left, which has Conv and
Gemm alone in integers. A LayerNormalization it builds where epsilon is written out, a HardSigmoid where alpha and beta
are, a recurrent layer where its layout is not, and integers that several operators read, of which one is float or a
model output, where each has a DequantizeLinear of its own, as all four are here.
A Where that puts a mask in the place of scores crashes it between quantizers: the mask is added to them instead. A
ConvTranspose has explicit padding here, without which it crashes in float too. So it does on a cubic Resize, a MaxPool
of five dimensions, a BatchNormalization in training mode, inputs without axes, If, Loop and Scan: ``onnxq check`` names
those, bits of a constant, a LayerNormalization over several axes, a Gather of one index behind a Conv, and a Conv as
heads of detectors have for distances: of one channel, it reads what was reshaped and transposed, and is reshaped and
split behind (some such it builds, those of an input of three axes or of one Conv). Not verified: the NPU itself.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.checks.findings import Finding
from onnxq.graph.note import Note
from onnxq.graph.passes.added_masks import added_masks
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.recognition.groups import KINDS
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.values import constant_array, is_constant, static_shape
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.render.own_dequantizers import own_dequantizers
from onnxq.rows import (
    conv_axis,
    conv_transpose_axis,
    each,
    gemm_axis,
    matmul_axis,
    only_an_output,
    plain_gemm,
    plain_max_pool,
)
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_DEFAULTS = {"HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "LayerNormalization": {"epsilon": 1e-5}}
"""What ONNX gives to operators that do not say, and the builder does not."""
_LONGEST = 31
"""Strides and sides of a Conv without a bias, beside other strides of 8 or more."""
_SELECT = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose results have sizes that depend on the numbers."""
_BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
"""Operators whose constant operands it makes int64, whatever they are."""
_RECURRENT = ("GRU", "LSTM", "RNN")
"""Operators that it runs as those of an opset without a layout: one that is written out ends it, the default too."""


def _rows(node: ir.Node) -> str | None:
    """A product of four axes, or of two with one row: the builder hangs on others where they are quantized."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is None or len(shape) == 4:
        return None
    if len(shape) != 2:
        return (
            f"RKNN's builder hangs on a quantized {node.op_type} of {'three' if len(shape) == 3 else len(shape)} axes"
        )
    one = shape[0] == 1 or not isinstance(shape[0], int)
    return None if one else f"RKNN's builder hangs on a quantized {node.op_type} of more than one row"


def _gemm(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b, of one row: the builder hangs on more where they are quantized."""
    return plain_gemm(node) or _rows(node)


def _moves_little(node: ir.Node) -> str | None:
    """One of strides below 8 (of a ConvTranspose 8 at most), or below 32 with sides below 32 and without a bias."""
    step = max(node.attributes.get_ints("strides", ()), default=1)
    side = max((static_shape(node.inputs[1]) or ())[2:], default=1)
    bias = len(node.inputs) > 2 and node.inputs[2] is not None
    transposed = node.op_type == "ConvTranspose"
    if step <= (8 if transposed else 7) or not (bias or (not transposed and max(step, side) > _LONGEST)):
        return None
    what = "with a bias" if bias else f"of side {side}"
    return f"RKNN's builder fails on a {node.op_type} of stride {step} {what} in a model with quantizers"


def _no_heads(node: ir.Node) -> str | None:
    """A product that is none of multi-head attention, and of four axes, or of two with one row."""
    if _is_of_heads(node):
        return "RKNN's builder may crash on multi-head attention with quantized products"
    return _rows(node)


def _softmax(node: ir.Node) -> str | None:
    """One that is read in the model, but by no product of multi-head attention."""
    if any(_is_of_heads(use.node) for use in node.outputs[0].uses()):
        return "RKNN's builder may crash on multi-head attention with a quantized Softmax"
    return only_an_output(node)


def _of_integers(node: ir.Node) -> str | None:
    """An Add of nothing that a MatMul in float makes, as the residuals of a transformer are."""
    pending, seen = [value for value in node.inputs if value is not None], set[ir.Value]()
    while pending:
        value = pending.pop()
        maker = value.producer()
        if maker is None or value in seen or maker.domain != "":
            continue
        seen.add(value)
        if maker.op_type == "MatMul" and _rows(maker) is not None:
            return "RKNN's builder may crash on a quantized Add of what a MatMul in float makes"
        if maker.op_type == "Add":
            pending += [operand for operand in maker.inputs if operand is not None]
    return None


def _turned_inside(node: ir.Node) -> str | None:
    """One of no model input of three axes: the builder hangs where a quantized Conv reads that."""
    x = node.inputs[0]
    if x is not None and x.is_graph_input() and x.shape is not None and len(x.shape) == 3:
        return "RKNN's builder hangs on a quantized Transpose of a model input of three axes before a Conv"
    return None


def _rewrite(model: ir.Model) -> list[Note]:
    """What the builder crashes on, as it takes it; see the top of this file."""
    return [*explicit_pads(model), *added_masks(model)]


def _nowhere(node: ir.Node) -> str | None:
    """What the builder takes in no model of a node, also of floats alone."""
    get, value = node.attributes, node.inputs[0] if node.inputs else None
    if node.domain != "":
        return None
    if node.op_type in ("If", "Loop", "Scan", *_SELECT):
        return node.op_type
    if node.op_type == "MaxPool" and value is not None and value.shape is not None and len(value.shape) > 4:
        return "MaxPool of five dimensions"
    if node.op_type == "Resize" and get.get_string("mode", "nearest") == "cubic":
        return "cubic Resize"
    if node.op_type in _BITS and any(is_constant(operand) for operand in node.inputs):
        return f"{node.op_type} with a constant"
    if node.op_type == "LayerNormalization" and get.get_int("axis", -1) not in (-1, _last_axis(value)):
        return "LayerNormalization over several axes"
    maker = value.producer() if node.op_type == "Gather" and value is not None else None
    if maker is not None and maker.op_type == "Conv" and maker.domain == "" and _is_scalar(node.inputs[1]):
        return "Gather of a single index, without an axis, behind a Conv"
    trains = node.op_type == "BatchNormalization" and get.get_int("training_mode", 0) == 1
    return "BatchNormalization in training mode" if trains else None


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
    if value is not None and value.is_graph_input() and value.shape is not None and len(value.shape) == 3:
        return False
    return _is_reshaped_and_split(node)


def _is_reshaped_and_split(node: ir.Node) -> bool:
    """Whether the result of a node is reshaped, and of that several parts are taken."""
    for reshape in node.outputs[0].consumers():
        parts = [n.op_type for n in reshape.outputs[0].consumers() if n.op_type in ("Split", "Slice")]
        if reshape.op_type == "Reshape" and ("Split" in parts or len(parts) > 1):
            return True
    return False


def _last_axis(value: ir.Value | None) -> int:
    """The last axis of a tensor, from the front; -1 where its rank is not known."""
    return len(value.shape) - 1 if value is not None and value.shape is not None else -1


def _is_scalar(value: ir.Value | None) -> bool:
    array = constant_array(value)
    return array is not None and array.ndim == 0


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Inputs of uint8 or without axes, what the builder takes in no model, and what in a float model alone."""
    found = []
    for value in model.graph.inputs:
        if value.dtype is ir.DataType.UINT8:
            what = "RKNN-Toolkit2 takes no uint8 input, in a float model neither"
            hint = "Take the Cast behind it out of the model: its input is float32 then, and may have the same numbers"
            found.append(Finding("warning", f"input {value.name!r}", what, hint))
        if value.shape is not None and len(value.shape) == 0:
            what = "RKNN-Toolkit2 runs no model with an input without axes, in float neither"
            found.append(Finding("warning", f"input {value.name!r}", what, "Give it one axis, of one number"))
    for node in all_nodes(model):
        if (none := _nowhere(node)) is not None:
            what = f"RKNN-Toolkit2 builds no model with a {none}, in float neither"
            found.append(Finding("warning", describe(node), what, "Cut the model before it or after it"))
        if _is_of_distances(node):
            what = "RKNN-Toolkit2 may build no model with a Conv of one channel between Reshapes whose result is split"
            found.append(
                Finding("warning", describe(node), f"{what}, in float neither", "Cut the model before it or after it")
            )
        if node.op_type in ("Conv", "ConvTranspose") and node.domain == "" and (why := _moves_little(node)):
            hint = "Cut the model behind it, and build that node in a float model of its own"
            found.append(Finding("warning", describe(node), why, hint))
        elif options.placement != "compute" and _is_of_heads(node):
            what = "RKNN's builder may crash on multi-head attention with quantized operators around it"
            hint = "--placement compute leaves float all but layers with weights, which it builds"
            found.append(Finding("warning", describe(node), what, hint))
    return found


def _is_of_heads(node: ir.Node) -> bool:
    """Whether a node is a product of two activations of four axes."""
    if node.op_type != "MatMul" or node.domain != "" or any(is_constant(value) for value in node.inputs):
        return False
    return all(value is not None and value.shape is not None and len(value.shape) == 4 for value in node.inputs)


def _cuts_nothing(node: ir.Node) -> str | None:
    """A Pad that cuts nothing off: the scale is that of its output."""
    pads = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    return "negative pads cut off what its scale would not hold" if pads is not None and (pads < 0).any() else None


def _finish(model: ir.Model, plan: Plan) -> None:
    """Write out attributes that the builder wants to see, and let nobody share integers: it fails on others."""
    own_dequantizers(model)
    for node in all_nodes(model):
        if node.domain != "":
            continue
        for name, number in _DEFAULTS.get(node.op_type, {}).items():
            node.attributes.setdefault(name, ir.AttrFloat32(name, number))
        if node.op_type in _RECURRENT and node.attributes.get_int("layout", 0) == 0:
            node.attributes.pop("layout", None)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2, when=_moves_little),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2, when=_moves_little),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, bias=2, when=_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, when=_rows),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), when=_no_heads),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1), when=_of_integers),
    *each(Kind.ELEMENTWISE, "Sub Mul Div", data=(0, 1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None),
    *each(Kind.ELEMENTWISE, "AveragePool GlobalAveragePool", same_scale=True),
    *each(Kind.ELEMENTWISE, "ReduceMean ReduceL2 InstanceNormalization"),
    OpRule("Resize", Kind.ELEMENTWISE, same_scale=True),
    OpRule("Pad", Kind.ELEMENTWISE, same_scale=True, when=_cuts_nothing),
    *each(Kind.ELEMENTWISE, "Relu Clip LeakyRelu PRelu Elu HardSwish Softplus Exp Sqrt Abs Neg"),
    *each(Kind.ELEMENTWISE, "Sigmoid HardSigmoid", fixed=(0.0, 1.0), when=only_an_output),
    OpRule("Softmax", Kind.ELEMENTWISE, when=_softmax),
    *each(Kind.ELEMENTWISE, "Tanh Erf", fixed=(-1.0, 1.0)),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    OpRule("Transpose", Kind.MOVEMENT, when=_turned_inside),
    *each(Kind.MOVEMENT, "Reshape Flatten Squeeze Unsqueeze Slice Split DepthToSpace SpaceToDepth"),
)

BACKEND = Backend(
    name="rknn",
    title="Rockchip NPU (RKNN-Toolkit2)",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    whole=frozenset(KINDS) - {"silu", "hardswish"},
    drops_absorbed=False,
    max_opset=19,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    rewrite=_rewrite,
    lacks=_lacks,
    finish=_finish,
    runtime="rknn",
    artifacts="model.onnx (QDQ, opset 19 or below)",
    verified="RKNN-Toolkit2 2.5.0, simulator of rk3588",
    unverified="the NPU itself",
)
