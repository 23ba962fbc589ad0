"""Fake quantization of transformers for experiments: any width from 2 to 16 bits, symmetric or not.

Not a device. Quantized are the inputs of MatMul (a weight, or a product of two activations) and Gemm, and the tables of
embeddings that Gather reads; a table has a scale for each of its columns. The first and the last layer have the width
of the others, and Softmax, LayerNormalization, activation functions and biases are float.

Verified on onnxruntime 1.31.1: both formats run at any width, with the numbers of :mod:`onnxq.qparams`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.values import rank_of
from onnxq.op_rule import ANY_BITS
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import gemm_axis, matmul_axis, plain_gemm
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]


def _table(node: ir.Node) -> str | None:
    """A Gather that picks rows of a constant table of embeddings."""
    table = node.inputs[0]
    rows = rank_of(table) == 2
    return None if rows and node.attributes.get_int("axis", 0) == 0 else "not a table of rows"


_RULES = (
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, output=False, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, output=False),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), output=False),
    OpRule("Gather:constant", Kind.WEIGHT_ONLY, weights=(0,), weight_axis=matmul_axis, when=_table),
)

BACKEND = Backend(
    name="academic_nlp",
    title="fake quantization of transformers for experiments, any bits",
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
    drops_absorbed=False,
    mixes=False,
    stores_weights=True,
    artifacts="model.onnx (onnxq::FakeQuantize functions, or QDQ)",
    verified="onnxruntime 1.32.0",
)
