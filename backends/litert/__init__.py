"""LiteRT, TensorFlow Lite's new name: int8 for phones, microcontrollers and NPUs that take ``.tflite`` files.

Activations are int8 with a zero point, weights int8 -127 to 127 without one, per channel for convolutions, Gemm and
MatMul, biases int32, after LiteRT's specification of 8-bit quantization (ai.google.dev/edge/litert, "quantization
spec"). What Sigmoid, Softmax and Tanh write has the scale and zero point of their kernels: 1/256 and -128, the same,
1/128 and 0. LogSoftmax stays float: its kernel cuts off what is below -16. Data movement, pools, Concat, Resize and Pad
keep one scale.

The QDQ model is translated operator by operator (:mod:`onnxq.backends.litert.operators`): an operator of integers is
one with its DequantizeLinear and QuantizeLinear nodes, Relu and Clip are gone where the grid ends as they do. Around
convolutions and pools tensors have their channels last; what needs the axes as ONNX has them has a TRANSPOSE in front,
and a Transpose of the model is none where its readers want that order. Inputs and outputs keep names, types and the
order of their axes. What TensorFlow Lite has in float alone (a layer normalization, say, is nine operators) stands
between DEQUANTIZE and QUANTIZE. A table of embeddings is int8 with a scale for each row, and EMBEDDING_LOOKUP unpacks
the rows that it picks.

Of the model's inputs a first axis of free size becomes 1, other free sizes must be fixed (``--shape``); a model with an
operator that is not translated (If and Loop, sizes that follow from data, recurrent layers of more than 128 steps) is
refused before data is run, and ``onnxq check`` says the same. Recurrent layers are written out step by step, in float.

Placement ``auto`` decides by what LiteRT's kernels cost on a CPU (:mod:`onnxq.backends.litert.costs`): convolutional
nets are in integers as a whole but for a Softmax or Sigmoid at their end, and of transformers the layers, not the
products of two activations and Softmax, of which XNNPACK has kernels for floats alone. The target ``litert_dynamic``
takes ranges at each run, ``litert_int16`` has activations of 16 bits. Microcontrollers and NPUs want all in integers:
``--placement all``.

Weights of 4 bits (``--weight-bits 4``) lie two in a byte where kernels take them so: convolutions, and products with a
matrix and tables whose rows have an even number; others have a byte each, with the same numbers. On a CPU products are
as fast as with 8 bits, convolutions three to four times as slow, which XNNPACK has no kernels for. TensorFlow Lite for
Microcontrollers takes them in convolutions, not in products; Arm's compiler Vela 5.2 ends its process at them.

Formats: ``tflite`` with inputs and outputs as the model has them; ``tflite-int8`` with those that are quantized as int8
themselves, for a microcontroller or an NPU: HardSwish is one operator, slow on x86-64. Both write the QDQ model, with
which ``onnxq verify`` compares. ``qdq`` and ``fake-quantize`` are for onnxruntime alone. The file is written with the
package ai-edge-litert (``pip install "onnxq[litert]"``).

LiteRT's kernels compute what QDQ says but for their rounding: they multiply by fixed-point numbers, and some round
twice. Layer by layer XNNPACK's convolutions give onnxruntime's codes but for 32 of 14 million (EfficientNet-Lite0),
others are a step off here and there: LeakyRelu in 1 of 100, a product of two activations in 1 of 100. HardSwish is
written in ``tflite`` with sums and products, for which XNNPACK has kernels, and is up to two steps off.

Verified with ai-edge-litert 2.3.0 on x86-64 (its own kernels and XNNPACK's): numbers. TensorFlow Lite for
Microcontrollers (package tflite-micro of October 2026) runs 26 nets; of 23 that are all in integers it gives the codes
of LiteRT's plain kernels for 21, a step off for 2. Arm's compiler Vela 5.2 places all operators of 22 of 27
convolutional nets on an Ethos-U55 and on an Ethos-U85; it has no DEPTH_TO_SPACE, and for an Ethos-U55 it ends with an
error at a TRANSPOSE of five axes. From documents only: phones, GPUs, Coral's Edge TPU.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.backends.litert.biased import biased_products
from onnxq.backends.litert.conversion import convert
from onnxq.backends.litert.costs import COSTS, DEQUANTIZE, NODE, QUANTIZE
from onnxq.backends.litert.flat import FlatModel
from onnxq.backends.litert.forms import (
    adds_a_vector,
    has_slopes_of_channels,
    is_a_table,
    means_whole_windows,
    of_planes,
    rises,
    steep_by_one,
)
from onnxq.backends.litert.grids import fit_grids
from onnxq.backends.litert.packing import packed
from onnxq.console.terminal import listed
from onnxq.errors import BackendError, ModelError, OptionError
from onnxq.file_system import write_bytes
from onnxq.graph.note import Note
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.passes.fuse_gelu import fuse_gelu
from onnxq.graph.passes.hard_sigmoids import hard_sigmoids
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.traverse import all_nodes
from onnxq.options import Options
from onnxq.planning.table_rows import positions, row
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE, QDQ, write_rendered
from onnxq.rows import conv_axis, conv_transpose_axis, each, gemm_axis, matmul_axis
from onnxq.spec import QuantSpec

__all__ = ["BACKEND", "runtime_file"]

_ENDING = ".tflite"
_ONNX_ALONE = ("qdq", "fake-quantize")
_BY_COST = ("slower", "product of two")
"""How reasons begin that ``--placement all`` overrules."""
_SHOWN = 3
"""Nodes that a message names."""


def _rewrite(model: ir.Model) -> list[Note]:
    """What TensorFlow Lite has as one operator, or has not and says with others in integers."""
    passes = (explicit_pads, fuse_gelu, lone_norms, hard_sigmoids, biased_products)
    return [note for each_pass in passes for note in each_pass(model)]


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
        hints = dict.fromkeys(each.hint for each in refused[:_SHOWN])
        raise ModelError(f"TensorFlow Lite cannot hold it: {said}{more}", hint="; ".join(hints))


def _write(quantized: Quantized, path: Path, *, codes: bool) -> list[Path]:
    """The QDQ model, and its translation."""
    flat = _translated(quantized, codes=codes)
    said = f" {json.dumps(_coded(quantized, flat))}" if codes else ""
    written = packed(flat, f"onnxq {quantized.version}{said}")
    return [*write_rendered(quantized, path), write_bytes(path.with_suffix(_ENDING), written)]


def _coded(quantized: Quantized, flat: FlatModel) -> list[str]:
    """Inputs and outputs that are integers in the file, and floats in the model."""
    return [name for name in flat.of_integers() if name in _floats_of(quantized.model)]


def _floats_of(model: ir.Model) -> list[str]:
    ends = {value.name or "": value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    return [name for name, dtype in ends.items() if dtype is ir.DataType.FLOAT]


def _translated(quantized: Quantized, *, codes: bool) -> FlatModel:
    integers = {*quantized.plan.quantized, *quantized.plan.absorbed}
    return _converted(quantized.rendered(), integers, codes=codes)


def runtime_file(target: Backend, model: ir.Model, path: Path) -> Path:
    """A model alone as LiteRT takes it, in integers what stands between quantizers, as far as the table has it."""
    flat = _converted(model, {node.name or "" for node in all_nodes(model) if _is_between_quantizers(target, node)})
    return write_bytes(path.with_suffix(_ENDING), packed(flat, "onnxq"))


def _converted(model: ir.Model, integers: Collection[str], *, codes: bool = False) -> FlatModel:
    flat, refused = convert(model, integers, codes=codes)
    if refused:
        raise BackendError(refused[0].why, where=refused[0].where, hint=refused[0].hint)
    return flat


def _runtime_file(model: ir.Model, path: Path) -> Path:
    return runtime_file(BACKEND, model, path)


def _is_between_quantizers(target: Backend, node: ir.Node) -> bool:
    rule = row(target, node)
    if rule is None or (rule.when is not None and rule.when(node) is not None):
        return False
    asked = {*positions(rule, node), *([rule.bias] if rule.bias is not None else [])}
    read = [value for k, value in enumerate(node.inputs) if k in asked and value is not None]
    makers = [value.producer() for value in read]
    written = [use.node for value in node.outputs for use in value.uses()]
    return (
        all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)
        and all(reader.op_type == "QuantizeLinear" for reader in written)
        and not any(value.is_graph_output() for value in node.outputs)
    )


def _said_of(quantized: Quantized, *, codes: bool) -> list[str]:
    """What the file has otherwise than the model: a batch of one, floats where integers are planned or asked for."""
    flat = _translated(quantized, codes=codes)
    free = [v.name or "" for v in quantized.model.graph.inputs if v.shape and not isinstance(v.shape[0], int)]
    said = [f"the first axis of {_listed(free)}, of free size, is 1 in the TensorFlow Lite file"] if free else []
    if flat.in_float:
        said.append(
            f"in float in the TensorFlow Lite file, which has that form for floats alone: {_listed(flat.in_float)}"
        )
    if not codes:
        return said
    left = [name for name in _floats_of(quantized.model) if name not in flat.of_integers()]
    said += [f"float in the TensorFlow Lite file, too: {_listed(left)}"] if left else []
    reasons = [kept.reason for kept in quantized.plan.kept_float]
    more = ": --placement all leaves as few as can be" if any(r.startswith(_BY_COST) for r in reasons) else ""
    return [*said, f"operators that stay float: {len(reasons)}{more}"] if reasons else said


def _listed(names: Sequence[str]) -> str:
    return listed([repr(name) for name in names], _SHOWN)


def _absorbs(node: ir.Node, function: ir.Node) -> bool:
    """Whether a kernel ends its result where a function does: one that copies codes would cut what others read."""
    rule = row(BACKEND, node)
    return rule is not None and rule.kind is not Kind.MOVEMENT and not rule.shares(node)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2, when=of_planes),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, bias=2, when=adds_a_vector),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    *each(Kind.ELEMENTWISE, "Add Sub Mul", data=(0, 1)),
    *each(Kind.ELEMENTWISE, "Relu Clip LeakyRelu HardSwish Gelu Exp Abs"),
    OpRule("Elu", Kind.ELEMENTWISE, when=steep_by_one),
    OpRule("PRelu", Kind.ELEMENTWISE, data=(0, 1), when=has_slopes_of_channels),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0), own_scale=True),
    OpRule("HardSigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0), when=rises),
    OpRule("Tanh", Kind.ELEMENTWISE, fixed=(-1.0, 1.0), own_scale=True),
    OpRule("Softmax", Kind.ELEMENTWISE, fixed=(0.0, 1.0), own_scale=True),
    OpRule("AveragePool", Kind.ELEMENTWISE, same_scale=True, when=means_whole_windows),
    *each(Kind.ELEMENTWISE, "Resize Pad", same_scale=True),
    *each(Kind.ELEMENTWISE, "Max Min", data=(0, 1)),
    *each(Kind.ELEMENTWISE, "GlobalAveragePool ReduceMean ReduceSum"),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, same_scale=True),
    *each(Kind.MOVEMENT, "MaxPool GlobalMaxPool ReduceMax ReduceMin"),
    *each(Kind.MOVEMENT, "Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Tile Gather"),
    OpRule("Gather:constant", Kind.WEIGHT_ONLY, weights=(0,), weight_axis=lambda node, position: 0, when=is_a_table),
    *each(Kind.MOVEMENT, "DepthToSpace SpaceToDepth Identity"),
)

_FLAT = Format(
    Quantized.qdq,
    partial(_write, codes=False),
    integers=True,
    beside=(_ENDING,),
    compiled=(_ENDING,),
    refuses=_refuse_model,
    notes=partial(_said_of, codes=False),
)

BACKEND = Backend(
    name="litert",
    title="LiteRT (TensorFlow Lite)",
    activation=QuantSpec(signed=True, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: replace(rule, cost=COSTS[rule.op]) for rule in _RULES},
    formats={
        "tflite": _FLAT,
        "tflite-int8": replace(_FLAT, write=partial(_write, codes=True), notes=partial(_said_of, codes=True)),
        "qdq": QDQ,
        "fake-quantize": FAKE_QUANTIZE,
    },
    by_cost=True,
    quantize_cost=QUANTIZE,
    dequantize_cost=DEQUANTIZE,
    node_cost=NODE,
    absorbs=_absorbs,
    complete_units=True,
    whole=frozenset(),
    min_opset=20,
    weight_bits=frozenset({4, 8}),
    act_bits=frozenset({8}),
    rewrite=_rewrite,
    adjust=fit_grids,
    refuses=_refuse,
    runtime="litert",
    runtime_file=_runtime_file,
    artifacts="model.tflite, model.onnx (QDQ)",
    verified="LiteRT 2.3.0 on x86-64: numbers; TensorFlow Lite for Microcontrollers, Vela 5.2: loads, placement",
    unverified="phones, GPUs, Edge TPU, microcontrollers themselves",
)
