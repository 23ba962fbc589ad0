"""Qualcomm's HTP (Hexagon tensor processor) through onnxruntime's QNN execution provider: QDQ, nearly all operators.

Around every operator stand quantizers, on graph inputs and outputs too: the provider makes one HTP operator of a node
and the DequantizeLinear and QuantizeLinear around it, and what has none on one side it computes wrongly or not at all.
Activations are uint8 with a zero point, or uint16 (``act_bits=16``), weights int8 without one: per channel for
convolutions and Gemm, per tensor for MatMul, as onnxruntime's own QNN configuration has it. Biases are int32. 16-bit
quantizers are those of the domain com.microsoft below opset 21.

Limits of onnxruntime's QNN configuration (``quantization/execution_providers/qnn/quant_config.py``): a real range is at
least 1e-4 wide; a 16-bit Sigmoid has the scale 1/65536 and the zero point 0, a 16-bit Tanh 1/32768 and 32768.

Formats: ``qdq``; ``context`` adds the graph compiled for the HTP, ``<model>_ctx.onnx`` and its ``.bin``; ``dlc`` adds
QAIRT's ``.dlc``. Those two are written by onnxruntime-qnn, which must be installed (see :mod:`onnxq.runtimes.qnn`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.errors import VerificationError
from onnxq.findings import Finding
from onnxq.graph.fuse_gelu import fuse_gelu
from onnxq.graph.fuse_layernorm import fuse_layernorm
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.numbers import fit_biases
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE, QDQ, write_rendered
from onnxq.rows import conv_axis, conv_transpose_axis, gemm_axis, plain_gemm, plain_max_pool
from onnxq.runtimes.child import examine
from onnxq.runtimes.qnn import RUNTIME
from onnxq.spec import QuantSpec

__all__ = ["BACKEND", "RULES", "fuse", "keep_ranges"]

_LEAST_RANGE = 1e-4
"""Least width of a real range."""
_WIDE = {"Sigmoid": (1 / 65536, 0), "Tanh": (1 / 32768, 32768)}
"""Scale and zero point of 16-bit outputs."""
_ONE = QuantSpec(signed=False, symmetric=False)
_DATA = (0,)


def _elementwise(*names: str) -> list[OpRule]:
    return [OpRule(name, Kind.ELEMENTWISE) for name in names]


def _movement(*names: str) -> list[OpRule]:
    return [OpRule(name, Kind.MOVEMENT) for name in names]


RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, bias=2, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,)),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    OpRule("LayerNormalization", Kind.ELEMENTWISE, weights=(1,), bias=2, weight=_ONE),
    OpRule("InstanceNormalization", Kind.ELEMENTWISE, weights=(1,), bias=2, weight=_ONE),
    *(OpRule(name, Kind.ELEMENTWISE, data=(0, 1)) for name in ("Add", "Sub", "Mul", "Div", "PRelu", "Pow")),
    *(OpRule(name, Kind.ELEMENTWISE, data=None) for name in ("Concat", "Max", "Min", "Sum")),
    OpRule("Where", Kind.ELEMENTWISE, data=(1, 2)),
    *_elementwise("Relu", "Clip", "LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Gelu", "Mish", "Softplus"),
    *_elementwise("Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal"),
    *_elementwise("Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Selu", "Celu", "ThresholdedRelu", "Softsign"),
    *_elementwise("AveragePool", "GlobalAveragePool", "LRN", "LpNormalization", "CumSum", "GridSample"),
    *_elementwise("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd", "Resize", "Pad"),
    *_elementwise("GlobalMaxPool", "RMSNormalization", "Einsum", "Atan", "Asin", "Tan"),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    *_movement("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Expand", "Tile"),
    *_movement("Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Identity", "TopK", "Trilu"),
    *_movement("ReverseSequence", "Compress"),
    OpRule("ScatterND", Kind.ELEMENTWISE, data=(0,2)),
    OpRule("ScatterElements", Kind.ELEMENTWISE, data=(0,2)),
)


def fuse(model: ir.Model) -> list[Note]:
    """Bring chains of operators into the operators that the HTP has: GELU (of Erf it has none), layer normalization."""
    return [*fuse_gelu(model), *fuse_layernorm(model)]


BACKEND = Backend(
    name="qnn",
    title="Qualcomm HTP (QNN) through onnxruntime",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in RULES},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    complete_units=True,
    whole=frozenset(),
    mixes=False,
    min_opset=20,
    wide_domain="com.microsoft",
    act_bits=frozenset({8, 16}),
    rewrite=fuse,
    runtime="qnn",
)
