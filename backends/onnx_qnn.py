"""ONNX with QOperators: uint8 activations and weights, one asymmetric scale a tensor, int32 biases.

This is the graph that MQBench calls ONNX_QNN. Where MQBench's differs, the operators' specifications are followed:
biases and weights are rounded to nearest and saturated, a Gemm is a QGemm, scales are scalars, and data movement runs
on integers. A Sigmoid or Softmax that only makes a model output stays float.

Verified on onnxruntime 1.31.1, x86-64, optimizations on and off. Convolutions with uint8 weights take two to four times
as long there as with the int8 ones of the target ``onnxruntime``. TVM 0.27 has none of these operators; that its older
Relay importer had them is known from documents only.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.backends.onnxruntime.limits import adjust, several
from onnxq.backends.onnxruntime.rewrites import finish
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.render.qoperator import QOPERATOR
from onnxq.rows import each, nearest, only_an_output, plain_average_pool, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]


_BYTE = QuantSpec(signed=False, symmetric=False)


def _softmax(node: ir.Node) -> str | None:
    """One that is read in the model, of more than one element to a row: a model output alone is as cheap in float."""
    return only_an_output(node) or several(node)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), bias=2, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,)),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Mul", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None),
    OpRule("AveragePool", Kind.ELEMENTWISE, when=plain_average_pool),
    OpRule("GlobalAveragePool", Kind.ELEMENTWISE),
    OpRule("LeakyRelu", Kind.ELEMENTWISE),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0), when=only_an_output),
    OpRule("Softmax", Kind.ELEMENTWISE, fixed=(0.0, 1.0), when=_softmax),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    OpRule("Resize", Kind.MOVEMENT, when=nearest),
    *each(Kind.MOVEMENT, "Transpose Reshape Flatten Squeeze Unsqueeze Slice Split Gather Expand"),
    *each(Kind.MOVEMENT, "DepthToSpace SpaceToDepth"),
)

BACKEND = Backend(
    name="onnx_qnn",
    title="ONNX with QLinear operators",
    activation=_BYTE,
    weight=_BYTE,
    rules={rule.op: rule for rule in _RULES},
    formats={"qoperator": QOPERATOR, "qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    per_channel=False,
    unsigned=True,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    quantizer_bits=frozenset({8}),
    runtime_operators=True,
    runtime="onnxruntime",
    adjust=adjust,
    finish=finish,
    artifacts="model.onnx (QLinearConv, QLinearAdd, ...)",
    verified="onnxruntime 1.32.0 on x86-64, optimizations on and off",
    unverified="TVM's Relay importer; TVM 0.27 has no QLinear operators",
)
