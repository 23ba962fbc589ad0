"""Apache TVM (Relax): the QDQ model of onnxruntime's scheme, all that its table allows quantized.

TVM reads QuantizeLinear and DequantizeLinear as ``R.quantize`` and ``R.dequantize`` and computes between them in float:
it has no integer kernels for them, so no costs decide what is quantized. It is an independent interpreter of what a QDQ
model means. Activations are uint8 or uint16, weights int8 or int16; 4-bit integers it cannot load.

Verified on TVM 0.27.0.post1 (LLVM, x86-64): equal to onnxruntime without optimizations, number for number.
"""

from __future__ import annotations

from onnxq.backend import Backend
from onnxq.backends.onnxruntime import BACKEND as ONNXRUNTIME
from onnxq.render.formats import QDQ

__all__ = ["BACKEND"]

BACKEND = Backend(
    name="tvm",
    title="Apache TVM (Relax)",
    activation=ONNXRUNTIME.activation,
    weight=ONNXRUNTIME.weight,
    rules=ONNXRUNTIME.rules,
    formats={"qdq": QDQ},
    wide_domain="com.microsoft",
    weight_bits=frozenset(range(5, 17)),
    act_bits=frozenset({8, 16}),
    stores_weights=True,
    runtime="tvm",
    artifacts="model.onnx (QDQ)",
    verified="TVM 0.27.0 (LLVM, x86-64): equal to onnxruntime",
)
