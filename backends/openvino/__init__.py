"""OpenVINO on a CPU: QDQ or FakeQuantize, uint8 activations, int8 weights per channel, float biases.

Quantizers stand at the inputs of integer operators, none between a convolution and its activation function, and the
activation function stays: OpenVINO computes it in the convolution's kernel. Activations are uint8 with a zero point.
ConvTranspose and the product of two activations have integer kernels for zero point 0 only: what they read is uint8
where it cannot be negative (behind Relu, Softmax ...), else int8. Weights are -127 to 127; with unsigned weights every
convolution would run in float. Data movement and Concat keep one scale, and are quantized only where they lead to an
integer operator. What a depthwise convolution reads may have a scale for each channel, as NNCF gives it, in a model to
deploy. Of a residual Add the branch that no convolution computes for it alone is quantized, so that the block passes
integers on.

Where convolutions of kernel 1 with equal strides are all that multiplies a tensor (the first and the shortcut of a
block of ResNet v1, say), OpenVINO takes these strides out and puts a MaxPool of kernel 1 between DequantizeLinear and
convolution: both would run in float, and with padding it computes another shape. The model is rewritten: the MaxPool
stands in front of the QuantizeLinear. A bias that several convolutions read, as those of a detector's heads do, is
copied: shared, OpenVINO adds it in a float kernel of its own, with the function and the quantizer behind.

What OpenVINO 2026.4 computes wrongly in integers, and the float model rightly, has another form or stays float:

* A convolution without a bias that several operators read, where sizes are free or a Loop is among them: its scale is
  applied once for each. It is given a bias of zeros. Products of two activations and ConvTranspose stay float there.
* A Gather of a scalar index behind what has scales for each channel (the last token's row of a linear layer without a
  bias): the scales keep the axis that it takes away. It picks by a vector of one index, and a Squeeze is behind it.
* A Mul or Add of a scalar behind a Gather from a table, as embeddings are scaled: OpenVINO takes it for the scale
  of integers, and refuses the model where a product of two activations follows. The scalar is named first; several,
  and one that is subtracted or divided by, are computed on the table.
* A convolution with a bias in front of a quantizer where sizes are free, and where the model computes with one (repeats
  a detector's anchors for each sample, say): OpenVINO reads the size of the convolution, and adds the first channel's
  bias to all. Behind each Shape stands a Max with 0, which keeps it where it is.
* A Gather by a matrix of indices along rows or columns (torch's Unfold), behind a convolution without a bias: OpenVINO
  refuses the model. Such a convolution is given a bias of zeros.
* A sum or mean over the second of three axes (of a batch of tokens, say): it is right for the first sample alone, and
  0 dB for the others. ReduceMean, ReduceSum and GlobalAveragePool stay float there, with what else reads their input;
  behind a Transpose too, which OpenVINO moves.
* A ReduceMax, ReduceMin or GlobalMaxPool in float in front of a quantizer: it takes the largest of rounded numbers. The
  quantizer stands in front of it, with the same numbers.
* A Concat along another axis than channels, of which it makes a vector of zero points: with a matrix product behind it
  it refuses the model, a convolution runs in float. What is multiplied by a matrix has no zero point there.
* A ConvTranspose that moves by 3 along its last axis, or farther than its kernel reaches, or cuts off more than that;
  a product of a vector, and one of matrices without a bias, or with one of zeros, to which an axis is added behind the
  last.

Of ReduceL1, ReduceLogSum and ReduceLogSumExp of opset 13 to 17 OpenVINO reads no axes, in float too, and reduces all of
them: a model that has one is raised to opset 18. What it makes of a DFT that is onesided has an axis more, in float
too: half of a whole one is taken. Of a DFT of opset 20 it reads no axis, and transforms along the second, in float too.
Its Transposes bring the axis there.

Scales are rounded to 16 significant bits (relative change 1e-5 at most): then both ends of a FakeQuantize's range are
float32 numbers exactly, in both formats, and the scale can be read back.

16-bit activations are refused: OpenVINO strips 16-bit quantizers and computes those layers in float.

The format ``fake-quantize`` is for onnxruntime: OpenVINO cannot read its functions.

Verified on OpenVINO 2026.4.1, x86-64 with AVX512-VNNI and AMX, opsets 17 to 24, by the layers of the compiled model and
by numbers: which operators have integer kernels, at which zero points, and that both formats run in the same kernels.
Layer by layer the codes are onnxruntime's, but for four in a million, which are at a tie to the last bits of a float32
and differ by one. Without VNNI (AVX-512 alone) its sums of 8-bit products overflow as onnxruntime's do: where this
processor is such a one, or with ``--reduce-range``, weights have a reduced range, or are uint8 where they
were given, with which the numbers are onnxruntime's again; some convolutions with uint8 weights run in float. Other
processors, GPU and NPU: from OpenVINO's documents only.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.backends.openvino.biases import zero_biases
from onnxq.backends.openvino.integers import FUNCTIONS, LARGEST, MOVES, POOLS
from onnxq.backends.openvino.lacks import lacks
from onnxq.backends.openvino.multiplied import (
    why_no_product,
    why_not_convolved,
    why_not_matmul,
    why_not_multiplied,
    why_not_transposed,
)
from onnxq.backends.openvino.own_shapes import own_shapes
from onnxq.backends.openvino.passed_on import (
    UINT8,
    grid_by_weights,
    shortcut,
    why_no_shortcut,
    why_not_joined,
    why_not_passed_on,
    without_zero_point,
)
from onnxq.backends.openvino.scalar_indices import scalar_indices
from onnxq.backends.openvino.scalars_first import scalars_first
from onnxq.backends.openvino.scaled_tables import scaled_tables
from onnxq.backends.openvino.second_axis import spectra_along_the_second
from onnxq.backends.openvino.sums import why_not_pooled
from onnxq.errors import OptionError
from onnxq.graph.note import Note
from onnxq.graph.passes.own_biases import own_biases
from onnxq.graph.passes.strides_in_front import strides_in_front
from onnxq.graph.passes.whole_spectra import whole_spectra
from onnxq.graph.passes.write_out import NEWEST
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.options import Options
from onnxq.ort.overflow import products_overflow
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.openvino_fake_quantize import OPENVINO_FAKE_QUANTIZE, QDQ_ONCE
from onnxq.rows import (
    conv_axis,
    conv_transpose_axis,
    gemm_axis,
    matmul_axis,
    plain_gemm,
)
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_WITHOUT_AXES = frozenset({"ReduceL1", "ReduceLogSum", "ReduceLogSumExp"})
_AXES_OPSET = 18
_MANTISSA = 16
"""Significant bits of a scale: times an 8-bit integer, 24, those of a float32."""


def _refuse(options: Options) -> None:
    """16-bit activations.

    Raises:
        OptionError: they are asked for.
    """
    widths = [options.act_bits, *(change.act_bits for _, change in options.override)]
    if any(bits is not None and bits > 8 for bits in widths):
        raise OptionError(
            "OpenVINO removes 16-bit quantizers and computes the layers after them in float",
            where="act_bits",
            hint="Leave it out; keep layers that need more than 8 bits float with 'exclude'",
        )


def _rewrite(model: ir.Model) -> list[Note]:
    """What OpenVINO would compute otherwise or wrongly in another form; see the top of this file."""
    passes = (strides_in_front, own_biases, zero_biases, scalar_indices, scaled_tables, scalars_first, whole_spectra)
    last = (spectra_along_the_second, own_shapes)
    return [note for each in (*passes, *last) for note in each(model)]


def _rewrite_opset(model: ir.Model) -> int:
    """Of some reductions OpenVINO reads axes from opset 18 on, where they are an input; before, it reduces all."""
    return _AXES_OPSET if any(node.op_type in _WITHOUT_AXES for node in all_nodes(model)) else 0


def _adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Round scales, and say which operators a zero point puts into float."""
    for name, qp in numbers.items():
        mantissa, exponent = np.frexp(qp.scale.astype(np.float64))
        rounded = np.ldexp(np.rint(np.ldexp(mantissa, _MANTISSA)), exponent - _MANTISSA)
        numbers[name] = replace(qp, scale=np.asarray(rounded, np.float32))
    strict = {n.name for n in model.graph.all_nodes() if _needs_zero(n)} & plan.quantized.keys()
    shifted = {
        edge.node: site.tensor
        for site in plan.sites
        if site.role != "weight" and site.name in numbers and numbers[site.name].zero_point.any()
        for edge in site.readers
        if edge.node in strict
    }
    return [
        f"'{node}' runs in float on OpenVINO: {tensor!r} has a zero point. Leave the option 'symmetric' out"
        for node, tensor in shifted.items()
    ]


def _needs_zero(node: ir.Node) -> bool:
    return node.op_type == "ConvTranspose" or (
        node.op_type == "MatMul" and not any(is_constant(v) for v in node.inputs)
    )


def _gemm(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b."""
    return plain_gemm(node) or why_not_multiplied(node)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, output=False, when=why_not_convolved),
    OpRule(
        "Gemm",
        Kind.COMPUTE,
        weights=(1,),
        weight_axis=gemm_axis,
        output=False,
        activation=grid_by_weights,
        when=_gemm,
    ),
    OpRule(
        "MatMul",
        Kind.COMPUTE,
        weights=(1,),
        weight_axis=matmul_axis,
        output=False,
        activation=grid_by_weights,
        when=why_not_matmul,
    ),
    OpRule(
        "MatMul:product",
        Kind.PRODUCT,
        data=(0, 1),
        output=False,
        activation=without_zero_point,
        when=why_no_product,
    ),
    OpRule(
        "ConvTranspose",
        Kind.COMPUTE,
        weights=(1,),
        weight_axis=conv_transpose_axis,
        output=False,
        activation=without_zero_point,
        when=why_not_transposed,
    ),
    OpRule("Add", Kind.ELEMENTWISE, data=shortcut, output=False, when=why_no_shortcut),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, output=False, same_scale=True, when=why_not_joined),
    *(OpRule(op, Kind.ELEMENTWISE, output=False, when=why_not_pooled) for op in POOLS),
    *(
        OpRule(op, Kind.MOVEMENT, output=False, when=why_not_passed_on)
        for op in (*MOVES, *LARGEST, "MaxPool", "Resize")
    ),
)

BACKEND = Backend(
    name="openvino",
    title="OpenVINO on a CPU",
    activation=UINT8,
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={"qdq": QDQ_ONCE, "openvino-fake-quantize": OPENVINO_FAKE_QUANTIZE, "fake-quantize": FAKE_QUANTIZE},
    bias="float",
    channel_activations=True,
    constants="tensors",
    absorbed=FUNCTIONS,
    drops_absorbed=False,
    weight_bits=frozenset({7, 8}),
    act_bits=frozenset({8}),
    quantizer_bits=frozenset({8}),
    has_whole=NEWEST,
    runtime_operators=True,
    refuses=_refuse,
    lacks=lacks,
    rewrite=_rewrite,
    rewrite_opset=_rewrite_opset,
    overflows=products_overflow,
    adjust=_adjust,
    runtime="openvino",
    artifacts="model.onnx (QDQ, or FakeQuantize of org.openvinotoolkit)",
    next_step="ovc MODEL.onnx --compress_to_fp16=False",
    verified="OpenVINO 2026.4.1 on x86-64 with VNNI and AMX, and without: integer kernels, numbers",
    unverified="GPU, NPU, ARM",
)
