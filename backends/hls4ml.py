"""QONNX for hls4ml: as the target ``qonnx``, with scales that are powers of two, one for a tensor, biases too.

hls4ml makes an ``ap_fixed`` type of a Quant whose scale is one power of two, and multiplies by any other in nodes of
their own, in the precision of its configuration. Of weights with a scale for each channel in front of a MatMul it makes
nothing that computes. Biases have 16 bits. Unsigned is what cannot be negative, means of such included.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.backends.qonnx import BACKEND as QONNX
from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.traverse import full_type
from onnxq.options import Options
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_SIGNED = QuantSpec(power_of_two=True)
_UNSIGNED = QuantSpec(signed=False, symmetric=False, power_of_two=True)


_NAMES = (
    "Add Average AveragePool BatchNormalization Concat Conv Div Dropout Elu Flatten Gemm "
    "GlobalAveragePool GlobalMaxPool Identity LeakyRelu MatMul Max MaxPool Min Mul PRelu Pad Relu Reshape "
    "Resize Selu Sigmoid Softmax Softplus Softsign Sub Sum Tanh ThresholdedRelu Transpose"
)
_READ = frozenset(_NAMES.split())
"""Operators that the ONNX reader of hls4ml 1.3 has; Gemm is a MatMul and an Add in front of it, a Relu6 a Relu."""


def _grid(value: ir.Value) -> QuantSpec:
    return _UNSIGNED if cannot_be_negative(value, joined=True) else _SIGNED


_BIASED = ("Conv", "ConvTranspose", "Gemm")


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Operators for which hls4ml refuses a model."""
    return warn_of_nodes(model, _refused)


def _refused(node: ir.Node) -> tuple[str, str] | None:
    if (node.domain == "" and node.op_type in _READ) or node.domain == "onnxq":
        return None
    if node.op_type == "Clip" and node.domain == "":
        return "hls4ml has no Clip: it takes one that a quantizer behind it saturates as a Relu", "Export a Relu"
    return f"hls4ml's ONNX reader has no {full_type(node)}: it refuses the model", "Cut the model before it or after it"


BACKEND = replace(
    QONNX,
    name="hls4ml",
    title="hls4ml (FPGAs): QONNX with powers of two, any bits",
    activation=_SIGNED,
    weight=replace(QONNX.weight, power_of_two=True),
    weight_zero_points="",
    activation_zero_points=False,
    channel_activations=False,
    per_channel=False,
    rules={
        op: replace(rule, activation=_grid, weight_axis=None, bias=2 if op in _BIASED else None)
        for op, rule in QONNX.rules.items()
    },
    bias=QuantSpec(bits=16, power_of_two=True),
    lacks=_lacks,
    runtime="hls4ml",
    next_step="",
    verified="hls4ml 1.3.0: the C++ that it writes for Vitis HLS, compiled with g++, gives equal numbers",
    unverified="synthesis, and what other HLS compilers make of it",
)
