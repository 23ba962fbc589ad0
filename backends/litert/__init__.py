"""LiteRT, TensorFlow Lite's new name: int8 for phones, microcontrollers and NPUs that take ``.tflite`` files.

Activations are int8 with a zero point, weights int8 -127 to 127 without one, per channel for convolutions, Gemm and
MatMul, biases int32, after LiteRT's specification of 8-bit quantization (ai.google.dev/edge/litert, "quantization
spec"). What Sigmoid, Softmax, Tanh and LogSoftmax write has the scale and zero point of their kernels: 1/256 and -128,
the same, 1/128 and 0, 1/16 and 127. Data movement, pools, Concat, Resize and Pad keep one scale.

The QDQ model is translated operator by operator (:mod:`onnxq.backends.litert.operators`): an operator of integers is
one with its DequantizeLinear and QuantizeLinear nodes, Relu and Clip are gone where the grid ends as they do. Around
convolutions and pools tensors have their channels last; what needs the axes as ONNX has them has a TRANSPOSE in front,
and a Transpose of the model is none where its readers want that order. Inputs and outputs keep names, types and the
order of their axes. What TensorFlow Lite has in float alone (a layer
normalization, say, is nine operators) stands between DEQUANTIZE and QUANTIZE.

Of the model's inputs a first axis of free size becomes 1, other free sizes must be fixed; a model with an operator that
is not translated (recurrent layers, If and Loop, sizes that follow from data) is refused before data is run, and
``onnxq check`` says the same.

Formats: ``tflite`` with inputs and outputs as the model has them; ``tflite-int8`` with those that are quantized as int8
themselves, for a microcontroller; both write the QDQ model beside it, with which ``onnxq verify`` compares.
``qdq`` and ``fake-quantize`` are for onnxruntime alone. The file is written with the package ai-edge-litert
(``pip install "onnxq[litert]"``).

LiteRT's kernels compute what QDQ says but for their rounding: they multiply by fixed-point numbers, and some round
twice. A layer is a step off here and there (LeakyRelu in 7 of 100 elements, a convolution in 3 of 1,000), which a deep
net amplifies as it does any such difference: EfficientNet-Lite0 has 28.2 dB against onnxruntime without optimizations,
as much as onnxruntime with them, and 21.9 dB to the float model, 22.3 in simulation.

Verified with ai-edge-litert 2.3.0 on x86-64 (its own kernels and XNNPACK's): numbers. TensorFlow Lite for
Microcontrollers (package tflite-micro of October 2026) runs MNIST and EfficientNet-Lite0 within two steps of it. Arm's
compiler Vela 5.2 places all integer operators of these nets, and of a U-Net, on an Ethos-U55. From documents only:
phones, GPUs, Coral's Edge TPU.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.backends.litert.biased import biased_products
from onnxq.backends.litert.conversion import convert
from onnxq.backends.litert.flat import FlatModel
from onnxq.backends.litert.packing import packed
from onnxq.errors import BackendError, ModelError, OptionError
from onnxq.file_system import write_bytes
from onnxq.graph.note import Note
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.passes.fuse_gelu import fuse_gelu
from onnxq.graph.passes.hard_sigmoids import hard_sigmoids
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.traverse import all_nodes
from onnxq.numbers import fit_biases
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE, QDQ, write_rendered
from onnxq.rows import conv_axis, conv_transpose_axis, each, gemm_axis, matmul_axis, plain_gemm
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_FIXED = {"Sigmoid": (1 / 256, -128), "Softmax": (1 / 256, -128), "Tanh": (1 / 128, 0), "LogSoftmax": (16 / 256, 127)}
"""Scale and zero point that the kernels of these operators write."""

_ENDING = ".tflite"
_ONNX_ALONE = ("qdq", "fake-quantize")
_SHOWN = 3
"""Nodes that a message names."""


def _rewrite(model: ir.Model) -> list[Note]:
    """What TensorFlow Lite has as one operator, or has not and says with others in integers."""
    passes = (explicit_pads, fuse_gelu, lone_norms, hard_sigmoids, biased_products)
    return [note for each_pass in passes for note in each_pass(model)]


def _adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """The grids that kernels have by themselves, for what shares them too."""
    makers = {value.name: node.op_type for node in all_nodes(model) for value in node.outputs}
    changed: dict[str, QParams] = {}
    for site in plan.sites:
        old = numbers.get(site.name)
        fixed = _FIXED.get(makers.get(site.tensor, ""))
        if old is None or fixed is None or site.tied_to is not None or site.role != "activation":
            continue
        scale, zero = np.asarray(fixed[0], np.float32), np.asarray(fixed[1], np.int64)
        changed[site.name] = replace(old, scale=scale, zero_point=zero)
    for site in plan.sites:
        root = plan.root(site).name
        if root in changed:
            numbers[site.name] = replace(changed[root], spec=site.spec)
    if changed:
        fitted = dict(numbers)
        fit_biases(model, plan, fitted)
        numbers.update(fitted)
    return []


def _refuse(options: Options) -> None:
    """Formats that need the classes of the file's schema, where these are missing.

    Raises:
        OptionError: they are, and one of them is asked for.
    """
    if options.format not in _ONNX_ALONE and find_spec("ai_edge_litert") is None:
        raise OptionError(
            "TensorFlow Lite files are written with the package ai-edge-litert, which is not installed",
            where="format",
            hint='pip install "onnxq[litert]", or use the format qdq',
        )


def _refuse_model(model: ir.Model) -> None:
    """A model of which not all can be said.

    Raises:
        ModelError: it is one.
    """
    _, refused = convert(model)
    if refused:
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        said = "; ".join(f"{each.where}: {each.why}" for each in refused[:_SHOWN])
        raise ModelError(f"TensorFlow Lite cannot hold it: {said}{more}", hint=refused[0].hint)


def _write(quantized: Quantized, path: Path, *, codes: bool) -> list[Path]:
    """The QDQ model, and its translation."""
    flat = _translated(quantized, codes=codes)
    said = f" {json.dumps(flat.of_integers())}" if codes else ""
    written = packed(flat, f"onnxq {quantized.version}{said}")
    return [*write_rendered(quantized, path), write_bytes(path.with_suffix(_ENDING), written)]


def _translated(quantized: Quantized, *, codes: bool) -> FlatModel:
    integers = {*quantized.plan.quantized, *quantized.plan.absorbed}
    flat, refused = convert(quantized.rendered(), integers, codes=codes)
    if refused:
        raise BackendError(refused[0].why, where=refused[0].where, hint=refused[0].hint)
    return flat


def _still_float(quantized: Quantized) -> list[str]:
    """Inputs and outputs that are no int8, though that was asked for."""
    flat = _translated(quantized, codes=True)
    graph, done = quantized.model.graph, flat.of_integers()
    ends = {value.name: value.dtype for value in (*graph.inputs, *graph.outputs)}
    left = [name for name, dtype in ends.items() if dtype is ir.DataType.FLOAT and name not in done]
    return [f"{', '.join(map(repr, left))}: float in the TensorFlow Lite file, too"] if left else []


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, bias=2, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    *each(Kind.ELEMENTWISE, "Add Sub Mul", data=(0, 1)),
    *each(Kind.ELEMENTWISE, "Relu Clip LeakyRelu Elu HardSwish Gelu Exp Abs"),
    OpRule("PRelu", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0), own_scale=True),
    OpRule("Tanh", Kind.ELEMENTWISE, fixed=(-1.0, 1.0), own_scale=True),
    OpRule("Softmax", Kind.ELEMENTWISE, fixed=(0.0, 1.0), own_scale=True),
    OpRule("LogSoftmax", Kind.ELEMENTWISE, fixed=(-16.0, 0.0), own_scale=True),
    *each(Kind.ELEMENTWISE, "AveragePool Resize Pad", same_scale=True),
    *each(Kind.ELEMENTWISE, "Max Min", data=(0, 1), same_scale=True),
    *each(Kind.ELEMENTWISE, "GlobalAveragePool ReduceMean ReduceSum"),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, same_scale=True),
    *each(Kind.MOVEMENT, "MaxPool GlobalMaxPool ReduceMax ReduceMin"),
    *each(Kind.MOVEMENT, "Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Tile Gather"),
    *each(Kind.MOVEMENT, "DepthToSpace SpaceToDepth Identity"),
)

_FLAT = Format(
    Quantized.qdq,
    partial(_write, codes=False),
    integers=True,
    beside=(_ENDING,),
    compiled=(_ENDING,),
    refuses=_refuse_model,
)

BACKEND = Backend(
    name="litert",
    title="LiteRT (TensorFlow Lite)",
    activation=QuantSpec(signed=True, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={
        "tflite": _FLAT,
        "tflite-int8": replace(_FLAT, write=partial(_write, codes=True), notes=_still_float),
        "qdq": QDQ,
        "fake-quantize": FAKE_QUANTIZE,
    },
    complete_units=True,
    whole=frozenset(),
    min_opset=20,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    rewrite=_rewrite,
    adjust=_adjust,
    refuses=_refuse,
    runtime="litert",
    artifacts="model.tflite, model.onnx (QDQ)",
    verified="LiteRT 2.3.0 on x86-64: numbers; TensorFlow Lite for Microcontrollers, Vela 5.2: loads, placement",
    unverified="phones, GPUs, Edge TPU, microcontrollers themselves",
)
