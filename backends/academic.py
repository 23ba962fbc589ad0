"""Fake quantization for experiments: any width from 2 to 16 bits, symmetric or not, per tensor or per channel.

Not a device. Quantized are the weights of Conv, ConvTranspose, Gemm and MatMul and the tensors that these read; a
product of two activations reads two. Nothing is quantized behind an operator, biases are float. As papers have it, the
layers that read a model input or compute a model output (through an activation function or not) are given 8 bits
where the others have fewer. Unlike MQBench's backend of this name, BatchNormalization is folded into the layer first.

Verified on onnxruntime 1.31.1: both formats run at any width, with the numbers of :mod:`onnxq.qparams`.
"""

from __future__ import annotations

from onnxq.backend import Backend, Kind, OpRule
from onnxq.op_rule import ANY_BITS
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import conv_axis, conv_transpose_axis, gemm_axis, matmul_axis, plain_gemm
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, output=False),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, output=False),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, output=False, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, output=False),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), output=False),
)

BACKEND = Backend(
    name="academic",
    title="fake quantization for experiments, any bits",
    runtime_operators=True,
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={"fake-quantize": FAKE_QUANTIZE, "qdq": QDQ},
    bias="float",
    weight_zero_points="channel",
    asymmetric_weights=ANY_BITS,
    channel_activations=True,
    inputs_only=True,
    first_last_bits=8,
    absorbed=frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"}),
    drops_absorbed=False,
    mixes=False,
    artifacts="model.onnx (onnxq::FakeQuantize functions, or QDQ)",
    verified="onnxruntime 1.32.0",
)
