"""hls4ml, for FPGAs: QONNX as of the target ``qonnx``, with scales that are powers of two, one for a tensor.

hls4ml makes an ``ap_fixed`` type of a Quant whose scale is one power of two: what is written computes in its C++ as it
does here, bit for bit. By other scales it multiplies in nodes of their own, in the precision of its configuration, and
of weights with a scale for each channel in front of a MatMul it makes nothing that computes. Biases are quantized to 16
bits. Unsigned is what cannot be negative, means of such included. ``onnxq check --backend hls4ml`` names operators that
hls4ml does not read. Clip is one: it becomes a Relu only where its quantizer ends before it does, which for the 6 of a
Relu6 no power of two makes sure of.

To convert it, in Python with the package qonnx: ``cleanup_model``, ``ConvertToChannelsLastAndClean``, ``GemmToMatMul``,
``cleanup_model`` again, then ``hls4ml.converters.convert_from_onnx_model`` with a configuration by name
(``onnxq/runtimes/workers/run_hls4ml.py`` does that). A mean (GlobalAveragePool, AveragePool) hls4ml gives in steps of
what it reads, rounded down, unless the configuration has more bits for it: 20 dB in a net where onnxq rounds it behind.

Verified on hls4ml 1.3.0, backend Vitis, ``io_parallel``: the C++ that it writes, compiled with g++, gives equal numbers
for convolutions, depthwise ones too, Gemm, MatMul, Relu, residual Add, MaxPool and Flatten at 3 to 8 bits. Nothing was
synthesized.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.backends.qonnx import BACKEND as QONNX
from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.console.terminal import listed, plural
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.traverse import all_nodes, describe, full_type
from onnxq.graph.values import is_constant
from onnxq.options import Options
from onnxq.quantized import Quantized
from onnxq.render.limits import bounds
from onnxq.render.qonnx import clips_left
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_SIGNED = QuantSpec(power_of_two=True)
_UNSIGNED = QuantSpec(signed=False, symmetric=False, power_of_two=True)
_BIASED = ("Conv", "ConvTranspose", "Gemm")
_NAMES = (
    "Add Average AveragePool BatchNormalization Concat Conv Div Dropout Elu Flatten Gemm "
    "GlobalAveragePool GlobalMaxPool Identity LeakyRelu MatMul Max MaxPool Min Mul PRelu Pad Relu Reshape "
    "Resize Selu Sigmoid Softmax Softplus Softsign Sub Sum Tanh ThresholdedRelu Transpose"
)
_READ = frozenset(_NAMES.split())
"""Operators that the ONNX reader of hls4ml 1.3 has; a Gemm becomes a MatMul and an Add in front of it."""
_PERHAPS = "hls4ml has no Clip, which is written as a Relu where the quantizer behind it ends before"
_EXPORT = "Export a Relu"
_NAMED = 3


def _grid(value: ir.Value) -> QuantSpec:
    return _UNSIGNED if cannot_be_negative(value, joined=True) else _SIGNED


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Operators for which hls4ml refuses a model; a Clip from 0 is one if its quantizer turns out to end behind it."""
    perhaps = [describe(node) for node in all_nodes(model) if _begins_at_zero(node)]
    return [*warn_of_nodes(model, _refused), *(Finding("note", where, _PERHAPS, _EXPORT) for where in perhaps)]


def _clips(quantized: Quantized) -> list[str]:
    """The Clips that hls4ml refuses, where a Relu could have been."""
    zero = {node.name for node in all_nodes(quantized.model) if _begins_at_zero(node)}
    left = [repr(name) for name in clips_left(quantized) if name in zero]
    if not left:
        return []
    what = f"{plural(len(left), 'Clip')} that hls4ml does not read, so that it refuses the model"
    return [f"{what}: {listed(left, _NAMED)}. The quantizer behind ends beyond the Clip. {_EXPORT}"]


def _begins_at_zero(node: ir.Node) -> bool:
    if (node.domain, node.op_type) != ("", "Clip") or not all(v is None or is_constant(v) for v in node.inputs[1:]):
        return False
    return bounds(node)[0] == 0


def _refused(node: ir.Node) -> tuple[str, str] | None:
    if (node.domain == "" and node.op_type in _READ) or node.domain == "onnxq":
        return None
    if _begins_at_zero(node):
        return None
    return f"hls4ml's ONNX reader has no {full_type(node)}: it refuses the model", "Cut the model before it or after it"


BACKEND = replace(
    QONNX,
    name="hls4ml",
    title="FPGAs by hls4ml: QONNX with powers of two, any bits",
    activation=_SIGNED,
    weight=replace(QONNX.weight, power_of_two=True),
    weight_zero_points="",
    channel_activations=False,
    per_channel=False,
    rules={
        op: replace(rule, activation=_grid, weight_axis=None, bias=2 if op in _BIASED else None)
        for op, rule in QONNX.rules.items()
    },
    formats={
        name: replace(form, warns=_clips) if name == "qonnx" else form
        for name, form in QONNX.formats.items()
        if name != "qdq"
    },
    bias=QuantSpec(bits=16, power_of_two=True),
    lacks=_lacks,
    runtime="hls4ml",
    verified="hls4ml 1.3.0: its C++ for Vitis HLS, compiled with g++, gives equal numbers",
    unverified="synthesis; other HLS compilers",
)
