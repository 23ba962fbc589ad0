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
Gemm alone in integers. It crashes on a float product of what is computed in integers with a model input that others
read quantized, as a net that turns its points has: what makes that operand stays float. A LayerNormalization it builds
where epsilon is written out, a HardSigmoid where alpha and beta are, a recurrent layer where its layout is not, and
integers that several operators read, of which one is float or a model output, where each has a DequantizeLinear of its
own, as all four are here.
A Where that puts a mask in the place of scores crashes it between quantizers: the mask is added to them instead. A
ConvTranspose has explicit padding here, without which it crashes in float too. So it does on a cubic Resize, a MaxPool
of five dimensions, a BatchNormalization in training mode, inputs without axes, If, Loop and Scan: ``onnxq check`` names
those, bits of a constant, a LayerNormalization over several axes, a Gather of one index behind a Conv, and a Conv as
heads of detectors have for distances: of one channel, it reads what was reshaped and transposed, and is reshaped and
split behind (some such it builds, those of an input of three axes or of one Conv). A Conv over three axes in groups,
unless each channel gives one, crashes it or is off by up to 127 steps: it is written as a plain one.

Not verified: the NPU itself.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.backends.rknn.grouped_volumes import ungroup_volumes
from onnxq.backends.rknn.lacks import is_of_heads, lacks, moves_little
from onnxq.backends.rknn.mixed_products import in_float_for_products
from onnxq.graph.note import Note
from onnxq.graph.passes.added_masks import added_masks
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.recognition.groups import KINDS
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of, rank_of
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


def _no_heads(node: ir.Node) -> str | None:
    """A product that is none of multi-head attention, and of four axes, or of two with one row."""
    if is_of_heads(node):
        return "RKNN's builder may crash on multi-head attention with quantized products"
    return _rows(node)


def _softmax(node: ir.Node) -> str | None:
    """One that is read in the model, but by no product of multi-head attention."""
    if any(is_of_heads(use.node) for use in node.outputs[0].uses()):
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
    if x is not None and x.is_graph_input() and rank_of(x) == 3:
        return "RKNN's builder hangs on a quantized Transpose of a model input of three axes before a Conv"
    return None


def _rewrite(model: ir.Model) -> list[Note]:
    """What the builder crashes on, as it takes it, see the top of this file; normalizations alone as convolutions."""
    return [*explicit_pads(model), *added_masks(model), *lone_norms(model), *ungroup_volumes(model)]


def _cuts_nothing(node: ir.Node) -> str | None:
    """A Pad that cuts nothing off: the scale is that of its output."""
    pads = constant_array(input_of(node, 1))
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
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2, when=moves_little),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2, when=moves_little),
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
    *each(Kind.ELEMENTWISE, "Tanh Erf"),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    OpRule("Transpose", Kind.MOVEMENT, when=_turned_inside),
    *each(Kind.MOVEMENT, "Reshape Flatten Squeeze Unsqueeze Slice Split DepthToSpace SpaceToDepth"),
)

BACKEND = Backend(
    name="rknn",
    title="Rockchip NPU (RKNN-Toolkit2)",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules=in_float_for_products(_RULES, _no_heads),
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    whole=frozenset(KINDS) - {"silu", "hardswish"},
    drops_absorbed=False,
    max_opset=19,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    rewrite=_rewrite,
    lacks=lacks,
    finish=_finish,
    runtime="rknn",
    artifacts="model.onnx (QDQ, opset 19 or below)",
    verified="RKNN-Toolkit2 2.5.0, simulator of rk3588",
    unverified="the NPU itself",
)
