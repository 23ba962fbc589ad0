"""QONNX, for FINN and other compilers for FPGAs: Quant nodes of 2 to 16 bits, zero point 0, float biases.

Quantizers stand on weights and on what is multiplied, added, joined and averaged, as Brevitas puts them: behind the
activation function, none between a layer and its function, none behind the last layer. Data movement and MaxPool pass
integers on, on one scale. Weights are signed and narrow (-127 to 127), a scale for each output channel. Activations
have one scale, unsigned where a Relu, Clip, Sigmoid or the like has made them, else signed. Zero points are 0. Biases,
batch normalizations that fold into no layer, and other arithmetic with constants stay float: FINN makes thresholds of
them. All that the table allows is quantized, whatever the data shows, as a dataflow of FINN has no floats inside.

``--weight-bits`` and ``--act-bits`` ask for widths, ``--override`` for those of some layers (first and last ones of 8
bits, say); ``onnxq finetune`` trains for few bits. A Clip that ends at 0 below, and above where its quantizer does (a
Relu6), is written as a Relu; attributes of convolutions are all written out, as qonnx and FINN ask for them.

By FINN's source it takes: zero points 0, unsigned integers behind a Relu alone and signed ones elsewhere, activations
of up to 8 bits unless asked for more, Quant on a weight for one reader. That is what is written, at 8 bits or fewer.
It moves a scale past an Add where both branches have the same, which onnxq does not seek. A model to deploy keeps zero
points and scales for each channel of an activation, with a note; with an odd zero point QONNX rounds what is half-way
between integers to the other side. hls4ml wants powers of two: the target ``hls4ml``.

Models of this kind are read by every verb, Brevitas' too: ``onnxq deploy brevitas.onnx --backend NAME`` writes one for
any other target. Read are Quant and IntQuant with constant operands, of 2 to 16 bits (biases of 32), rounding half to
even. BipolarQuant, Trunc, FloatQuant, other roundings, unsigned narrow grids and scales along two axes are named in an
error. FINN and hls4ml nets have no quantizer behind the last layer: targets that need one leave that layer float.

Verified on qonnx 1.0.0, opsets 17 to 25, 2 to 16 bits: its executor gives the numbers of onnxq's simulation. Brevitas
0.13.4 on torch 2.13, both exporters, 2 to 8 bits, biases float, of 8 and of 32 bits: read, such a model gives Brevitas'
own outputs to 130 dB, which is float32.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.values import is_constant
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.render.qonnx import QONNX, write_quant_nodes
from onnxq.rows import conv_axis, conv_transpose_axis, each, gemm_axis, matmul_axis, nearest, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_SIGNED = QuantSpec(signed=True, symmetric=True)
_UNSIGNED = QuantSpec(signed=False, symmetric=False)
"""Of what begins at 0, where the zero point is 0 too."""
_MOVES = (
    "DepthToSpace Flatten GlobalMaxPool MaxPool Reshape Resize Slice SpaceToDepth Split Squeeze Transpose Unsqueeze"
)
_COMPUTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "GlobalAveragePool", "ReduceMean"})
_JOINED = ("Add", "Mul", "Sub")


def _begins_at_zero(value: ir.Value | None) -> bool:
    """Whether a function makes a tensor, moved and joined or not, that gives nothing negative.

    Not a mean of such: FINN takes unsigned integers behind a Relu alone.
    """
    node = value.producer() if value is not None else None
    if node is None or node.domain != "":
        return False
    if node.op_type == "Concat" or node.op_type in _MOVES.split():
        return all(map(_begins_at_zero, node.inputs if node.op_type == "Concat" else node.inputs[:1]))
    return cannot_be_negative(value, steps=1)


def _grid(value: ir.Value) -> QuantSpec:
    return _UNSIGNED if _begins_at_zero(value) else _SIGNED


def _two_activations(node: ir.Node) -> str | None:
    """One of two activations: arithmetic with a constant stays as it is."""
    return "it computes with a constant" if any(map(is_constant, node.inputs)) else None


def _leads_on(node: ir.Node) -> str | None:
    """One that leads to a layer, a mean, or two activations that are computed with."""
    pending = list(node.outputs)
    for value in pending:
        for use in value.uses():
            reader = use.node
            if reader.domain == "" and (
                reader.op_type in _COMPUTED or (reader.op_type in _JOINED and _two_activations(reader) is None)
            ):
                return None
            if reader.op_type == "Concat" or reader.op_type in _MOVES.split():
                pending += [output for output in reader.outputs if output not in pending]
    return "nothing that reads it is quantized"


def _pool(node: ir.Node) -> str | None:
    """One whose indices are not used, that leads to a layer, a mean, or two activations that are computed with."""
    return plain_max_pool(node) or _leads_on(node)


def _resize(node: ir.Node) -> str | None:
    """One that picks the nearest elements, for a layer, a mean, or two activations that are computed with."""
    return nearest(node) or _leads_on(node)


_WHEN = {"MaxPool": _pool, "Resize": _resize}
_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    *each(Kind.ELEMENTWISE, " ".join(_JOINED), data=(0, 1), when=_two_activations),
    *each(Kind.ELEMENTWISE, "AveragePool GlobalAveragePool ReduceMean"),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, same_scale=True, when=_leads_on),
    *(OpRule(op, Kind.MOVEMENT, when=_WHEN.get(op, _leads_on)) for op in _MOVES.split()),
)

BACKEND = Backend(
    name="qonnx",
    title="FINN and others (FPGAs) by QONNX, any bits",
    activation=_SIGNED,
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    weight_zero_points="channel",
    activation_zero_points=True,
    channel_activations=True,
    rules={rule.op: replace(rule, output=False, activation=_grid) for rule in _RULES},
    formats={"qonnx": QONNX, "qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    bias="float",
    constants="none",
    inputs_only=True,
    absorbed=frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"}),
    drops_absorbed=False,
    mixes=False,
    runtime="qonnx",
    runtime_file=write_quant_nodes,
    artifacts="model.onnx (Quant of qonnx.custom_op.general)",
    next_step="qonnx-cleanup MODEL.onnx",
    verified="qonnx 1.0.0: equal numbers at 2 to 16 bits; Brevitas 0.13.4: its exports are read",
    unverified="FINN: what it takes is known from its source",
)
