"""LiteRT (TensorFlow Lite)."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.backends.litert.biased import biased_products
from onnxq.backends.litert.conversion import Refused, convert
from onnxq.checks.findings import Finding
from onnxq.errors import ModelError
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


def _rewrite(model: ir.Model) -> list[Note]:
    passes = (explicit_pads, fuse_gelu, lone_norms, hard_sigmoids, biased_products)
    return [note for each_pass in passes for note in each_pass(model)]


def _adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
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


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    _, refused = convert(model)
    return [Finding("warning", each.where, each.why) for each in refused]


def _refuses(model: ir.Model) -> None:
    _, refused = convert(model)
    if refused:
        raise ModelError(_said(refused), hint="Cut the model there, or use the format qdq")


def _said(refused: list[Refused]) -> str:
    return "; ".join(f"{each.where}: {each.why}" for each in refused[:3])


def _write(quantized: Quantized, path: Path) -> list[Path]:
    flat, refused = convert(quantized.rendered(), {*quantized.plan.quantized, *quantized.plan.absorbed})
    if refused:
        raise ModelError(_said(refused))
    written = flat.to_bytes(f"onnxq {quantized.version}")
    return [*write_rendered(quantized, path), write_bytes(path.with_suffix(".tflite"), written)]


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

BACKEND = Backend(
    name="litert",
    title="LiteRT (TensorFlow Lite)",
    activation=QuantSpec(signed=True, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={
        "tflite": Format(
            Quantized.qdq, _write, integers=True, beside=(".tflite",), compiled=(".tflite",), refuses=_refuses
        ),
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
    lacks=_lacks,
    runtime="litert",
    artifacts="model.onnx (QDQ), model.tflite",
)
