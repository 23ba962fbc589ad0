"""Rockchip NPUs by RKNN-Toolkit2: QDQ at opset 19 or below, uint8 activations, int8 weights per channel.

RKNN-Toolkit2 takes a QDQ model as one trained for quantization (``build(do_quantization=False)``) and has
QuantizeLinear and DequantizeLinear of the standard domain only, 8 bits wide.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.groups import KINDS
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import conv_axis, conv_transpose_axis, gemm_axis, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]


def _elementwise(op: str, *data: int) -> OpRule:
    return OpRule(op, Kind.ELEMENTWISE, data=data or (0,))


def _bounded(op: str, low: float) -> OpRule:
    return OpRule(op, Kind.ELEMENTWISE, fixed=(low, 1.0))


def _movement(op: str) -> OpRule:
    return OpRule(op, Kind.MOVEMENT)


def _one_row(node: ir.Node) -> str | None:
    """The builder hangs on a Gemm of several rows."""
    value = node.inputs[0]
    rows = value.shape[0] if value is not None and value.shape is not None and len(value.shape) else 1
    return plain_gemm(node) if not isinstance(rows, int) or rows == 1 else "RKNN's builder takes one row only"


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, bias=2, when=_one_row),
    _elementwise("Add", 0, 1),
    _elementwise("Sub", 0, 1),
    _elementwise("Mul", 0, 1),
    _elementwise("Div", 0, 1),
    OpRule("Concat", Kind.ELEMENTWISE, data=None),
    _elementwise("AveragePool"),
    _elementwise("GlobalAveragePool"),
    _elementwise("ReduceMean"),
    OpRule("Resize", Kind.ELEMENTWISE, same_scale=True),
    OpRule("Pad", Kind.ELEMENTWISE, same_scale=True),
    _elementwise("InstanceNormalization"),
    _elementwise("Relu"),
    _elementwise("Clip"),
    _elementwise("LeakyRelu"),
    _elementwise("PRelu"),
    _elementwise("Elu"),
    _elementwise("HardSwish"),
    _elementwise("Softplus"),
    _elementwise("Exp"),
    _elementwise("Sqrt"),
    _elementwise("Abs"),
    _elementwise("Neg"),
    _bounded("Sigmoid", 0.0),
    _bounded("HardSigmoid", 0.0),
    _bounded("Softmax", 0.0),
    _bounded("Tanh", -1.0),
    _bounded("Erf", -1.0),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    _movement("Transpose"),
    _movement("Reshape"),
    _movement("Flatten"),
    _movement("Squeeze"),
    _movement("Unsqueeze"),
    _movement("Slice"),
    _movement("Split"),
    _movement("DepthToSpace"),
    _movement("SpaceToDepth"),
)

BACKEND = Backend(
    name="rknn",
    title="Rockchip NPU (RKNN-Toolkit2)",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    whole=frozenset(KINDS) - {"silu", "hardswish"},
    max_opset=19,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    runtime="rknn",
    artifacts="model.onnx (QDQ, opset 19 or below)",
    verified="x",
)
