"""Vitis-AI and Ryzen-AI (XINT8): int8 in fixed point, one power-of-two scale for a tensor, weights and biases included.

A tensor has a fix position p: ``q = clamp(round(x * 2**p), -128, 127)``. The quantizer stands behind Conv, Gemm, Add,
MatMul or ConvTranspose together with the Relu, Relu6, LeakyRelu or PRelu that follows; positions obey the shifters of
the DPU (:mod:`onnxq.backends.vitis.positions`), and operators that it computes in its own way are written in that way
(:mod:`onnxq.backends.vitis.rewrites`).

The rules are those of amd-quark 0.13 (``XINT8_QCONFIG``: ``quantizers/npu_cnn_quantizer.py``,
``postprocess/refinement/refine.py``, ``postprocess/simulation/simulate_dpu.py``), verified by letting that code go over
the result: it changes nothing. Known from documents only: what the compilers (vaip, xir) put on the device. They round
half up, ONNX rounds half to even, so a device may differ in a last bit.

Where a Concat that no layer reads joins tensors too far apart for one scale (the boxes and scores of a detector), it
stays float with all behind it: the processor beside the DPU computes that. So it does LSTM and GRU, and what only moves
numbers from an input of the model or from one of them to one of them.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.backends.vitis.fix_positions import FIX_POSITIONS
from onnxq.backends.vitis.positions import adjust
from onnxq.backends.vitis.rewrites import bounds_of, factor, is_dpu_hard_sigmoid, rewrite
from onnxq.graph.recognition.groups import KINDS
from onnxq.graph.values import only_reader, scalar
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import each, nearest, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_SPEC = QuantSpec(bits=8, signed=True, symmetric=True, power_of_two=True)
_CLIPS = ((0.0, 6.0), (0.0, 1.0))
_FUSING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_HIGHEST = 127 / 128
"""Largest number at position 7, the lowest that the output of a HardSigmoid may have."""


def _together(node: ir.Node, function: ir.Node) -> bool:
    """Whether the DPU computes both in one go: no quantizer stands between."""
    if function.op_type == "Mul":
        return scalar(function.inputs[1]) is not None and scalar(function.inputs[1]) == factor(node)
    if function.op_type == "Clip" and bounds_of(function) not in _CLIPS:
        return False
    return node.op_type in _FUSING


def _hard_sigmoid(node: ir.Node) -> str | None:
    """A HardSigmoid of alpha 1/6 and beta 1/2."""
    return None if is_dpu_hard_sigmoid(node) else "only alpha 1/6 and beta 1/2 have a kernel"


def _interpolation(node: ir.Node) -> str | None:
    """A Resize, nearest or linear, that fills in no value of its own."""
    if node.attributes.get_string("mode", "nearest") == "linear":
        fills_in = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        return "it fills in a value that its input need not hold" if fills_in else None
    return nearest(node)


def _pad(node: ir.Node) -> str | None:
    """A Pad that fills in 0 or what is in its input."""
    if node.attributes.get_string("mode", "constant") != "constant" or len(node.inputs) < 3 or node.inputs[2] is None:
        return None
    return None if scalar(node.inputs[2]) == 0.0 else "it fills in a value that its input need not hold"


def _pooled(value: ir.Value | None) -> bool:
    """Whether a tensor is a Pad's that a mean pool alone reads: the two are computed together, without a quantizer."""
    node = value.producer() if value is not None else None
    reader = only_reader(value) if value is not None else None
    if node is None or reader is None or node.op_type != "Pad" or _pad(node) is not None:
        return False
    return reader.op_type in ("AveragePool", "GlobalAveragePool")


def _averaged(node: ir.Node) -> tuple[int, ...]:
    return () if _pooled(node.inputs[0]) else (0,)


def _padded(node: ir.Node) -> bool:
    return not _pooled(node.outputs[0])


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), bias=2),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), bias=2, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, data=(0, 1), weights=(0, 1)),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Sub", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Mul", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, same_scale=True),
    OpRule("AveragePool", Kind.ELEMENTWISE, data=_averaged),
    OpRule("GlobalAveragePool", Kind.ELEMENTWISE, data=_averaged),
    OpRule("ReduceMean", Kind.ELEMENTWISE),
    OpRule("Relu", Kind.ELEMENTWISE),
    OpRule("Clip", Kind.ELEMENTWISE),
    OpRule("LeakyRelu", Kind.ELEMENTWISE),
    OpRule("PRelu", Kind.ELEMENTWISE, weights=(1,)),
    OpRule("HardSigmoid", Kind.ELEMENTWISE, fixed=(0.0, _HIGHEST), own_scale=True, when=_hard_sigmoid),
    OpRule("Softmax", Kind.ELEMENTWISE),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    OpRule("Pad", Kind.MOVEMENT, output=_padded, when=_pad),
    OpRule("Resize", Kind.MOVEMENT, when=_interpolation),
    *each(Kind.MOVEMENT, "DepthToSpace Flatten Reshape Slice SpaceToDepth Split Squeeze Transpose Unsqueeze"),
)

BACKEND = Backend(
    name="vitis",
    title="AMD Vitis-AI DPU and Ryzen-AI NPU (XINT8)",
    activation=_SPEC,
    weight=_SPEC,
    bias=_SPEC,
    per_channel=False,
    rules={rule.op: rule for rule in _RULES},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE, "fix-positions": FIX_POSITIONS},
    absorbed=frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "Mul"}),
    absorbs=_together,
    drops_absorbed=False,
    mixes=False,
    in_float=frozenset({"GRU", "LSTM"}),
    float_tails=True,
    whole=frozenset(KINDS) - {"silu", "hardswish"},
    min_opset=17,
    max_opset=20,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    quantizer_bits=frozenset({8}),
    rewrite=rewrite,
    adjust=adjust,
    runtime_operators=True,
    runtime="vitis",
    artifacts="model.onnx (QDQ), or a float model.onnx with model.json (fix positions)",
    verified="amd-quark 0.13: its rules for the NPU change nothing; onnxruntime 1.32.0 runs it",
    unverified="compilation for a device (vaip, xir)",
)
