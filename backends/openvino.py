"""OpenVINO on a CPU: QDQ or FakeQuantize, uint8 activations, int8 weights per channel, float biases.

Quantizers stand at the inputs of integer operators, none between a convolution and its activation function, and the
activation function stays: OpenVINO computes it in the convolution's kernel. Activations are uint8 with a zero point.
ConvTranspose and the product of two activations have integer kernels for zero point 0 only: what they read is uint8
where it cannot be negative (behind Relu, Softmax ...), else int8. Weights are -127 to 127; with unsigned weights every
convolution would run in float. Data movement and Concat keep one scale, and are quantized only where they lead to an
integer operator. What a depthwise convolution reads may have a scale for each channel, as NNCF gives it, in a model to
deploy. Of a residual Add the branch that no convolution computes for it alone is quantized, so that the block passes
integers on.

Where convolutions of kernel 1 with equal strides are all that reads a tensor (the first and the shortcut of a block of
ResNet v1, say), OpenVINO takes these strides out and a MaxPool of kernel 1 in front, between DequantizeLinear and
convolution: both would run in float, and with padding it computes another shape. The model is rewritten: the MaxPool
stands in front of the QuantizeLinear. A bias that several convolutions read, as those of a detector's heads do, is
copied: shared, OpenVINO adds it in a float kernel of its own, with the function and the quantizer behind.

Scales are rounded to 16 significant bits (relative change 1e-5 at most): then both ends of a FakeQuantize's range are
float32 numbers exactly, in both formats, and the scale can be read back.

16-bit activations are refused: OpenVINO strips 16-bit quantizers and computes those layers in float.

The format ``fake-quantize`` is for onnxruntime: OpenVINO cannot read its functions.

Verified on OpenVINO 2026.4.1, x86-64 with AVX512-VNNI and AMX, opsets 17 to 24, by the layers of the compiled model and
by numbers: which operators have integer kernels, at which zero points, and that both formats run in the same kernels.
Layer by layer the codes are onnxruntime's, but for four in a million, which are at a tie to the last bits of a float32
and differ by one. Other processors, GPU and NPU: from OpenVINO's documents only.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.errors import OptionError
from onnxq.graph.note import Note
from onnxq.graph.passes.own_biases import own_biases
from onnxq.graph.passes.strides_in_front import picks_elements, strides_in_front
from onnxq.graph.passes.write_out import COMPOSITE
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.values import is_constant
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.openvino_fake_quantize import OPENVINO_FAKE_QUANTIZE, QDQ_ONCE
from onnxq.rows import (
    conv_axis,
    conv_transpose_axis,
    gemm_axis,
    matmul_axis,
    nearest,
    plain_gemm,
    plain_max_pool,
)
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_UINT8 = QuantSpec(signed=False, symmetric=False)
_INT8 = QuantSpec(signed=True, symmetric=True)
_FUNCTIONS = frozenset(
    {"Abs", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Sigmoid"}
    | {"Softplus", "Sqrt", "Tanh"}
)
"""Activation functions computed at the end of a convolution's or matrix product's kernel."""
_POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_MOVES: tuple[str, ...] = ("DepthToSpace", "Flatten", "Gather", "Reshape", "Slice")
_MOVES += ("SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze")
_PARTS = ("Gather", "Slice", "Split")
_PASS = (*_MOVES, "Concat", "MaxPool", "Resize")
"""Operators that pass the integers of their inputs on."""
_MULTIPLY = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_FARTHEST = 16
"""Operators that are looked through."""
_MANTISSA = 16
"""Significant bits of a scale: times an 8-bit integer, 24, those of a float32."""


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """All that reads a tensor, moved or joined with others before or not: node, position, the tensor it reads."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        for use in current.uses():
            yield use.node, use.idx, current
            if use.node.op_type in _PASS and (use.idx == 0 or use.node.op_type == "Concat"):
                pending += [v for v in use.node.outputs if v not in seen]
                seen.update(use.node.outputs)


def _starts_at_zero(value: ir.Value) -> bool:
    """Whether the zero point of a tensor's uint8 grid is 0, whatever shares that grid with it."""
    if not cannot_be_negative(value):
        return False
    node, first = value.producer(), value
    while node is not None and node.op_type in (*_MOVES, "MaxPool") and node.inputs[0] is not None:
        first = node.inputs[0]
        node = first.producer()
    joined = {reader for reader, _, _ in _readers(first) if reader.op_type == "Concat"}
    return all(cannot_be_negative(other) for reader in joined for other in reader.inputs)


def _without_zero_point(value: ir.Value) -> QuantSpec:
    """The grid of what only has kernels for zero point 0; behind Relu the zero point of a uint8 is 0 too."""
    return _UINT8 if _starts_at_zero(value) else _INT8


def _max_pool(node: ir.Node) -> str | None:
    if any(step != 1 for step in node.attributes.get_ints("dilations", ())):
        return "OpenVINO has no integer kernel for its dilations"
    return plain_max_pool(node)


def _why_not_passed_on(node: ir.Node) -> str | None:
    """One that an integer operator reads, on the grid in which it is moved."""
    if node.op_type == "Resize" and (why := nearest(node)) is not None:
        return why
    if node.op_type == "MaxPool" and (why := _max_pool(node)) is not None:
        return why
    if (node.op_type in _PARTS or picks_elements(node)) and not _from_integers(node.inputs[0]):
        return "only a part of its input is needed in integers: quantized after it"
    wanted = False
    for reader, position, value in (r for output in node.outputs for r in _readers(output)):
        op = reader.op_type
        product = op == "MatMul" and not any(is_constant(v) for v in reader.inputs)
        if product or (op == "ConvTranspose" and position == 0):
            if not _starts_at_zero(value):
                return f"quantized just before '{reader.name}', which needs zero point 0"
            wanted = True
        elif op == "Add":
            wanted = wanted or position in _shortcut(reader)
        elif op in _POOLS or (op in _MULTIPLY and position == 0):
            wanted = True
    return None if wanted else "no integer operator reads it"


def _from_integers(value: ir.Value | None) -> bool:
    """Whether a multiply-accumulate makes a tensor: its kernel can then write integers."""
    for _ in range(_FARTHEST):
        node = value.producer() if value is not None else None
        if node is None:
            return False
        if node.op_type in (*_MULTIPLY, "Concat"):
            return True
        if node.op_type not in (*_FUNCTIONS, *_PASS, "Add", "Mul", "Sub"):
            return False
        first = node.inputs[0]
        value = node.inputs[1] if len(node.inputs) > 1 and first is not None and first.producer() is None else first
    return False


def _why_not_pooled(node: ir.Node) -> str | None:
    """One behind a multiply-accumulate, whose kernel can then write integers."""
    return None if _from_integers(node.inputs[0]) else "no operator before it runs in integers"


def _own_convolution(value: ir.Value | None) -> bool:
    """Whether a tensor is the output of a convolution that nothing else reads: it computes the Add as well."""
    node = value.producer() if value is not None else None
    return node is not None and node.op_type == "Conv" and value is not None and len(value.uses()) == 1


def _shortcut(node: ir.Node) -> tuple[int, ...]:
    """Position of the branch of a residual Add that is quantized; none where it is no such Add."""
    own = [k for k in (0, 1) if _own_convolution(node.inputs[k])]
    if len(own) != 1 or is_constant(node.inputs[1 - own[0]]):
        return ()
    return (1 - own[0],) if _from_integers(node.inputs[1 - own[0]]) else ()


def _why_no_shortcut(node: ir.Node) -> str | None:
    """A residual Add that a convolution computes, with integers in its other branch: that branch is quantized."""
    if _shortcut(node):
        return None
    return "not a residual Add (one branch from a convolution used only here, the other quantized)"


def _why_not_transposed(node: ir.Node) -> str | None:
    """A ConvTranspose without groups."""
    return None if node.attributes.get_int("group", 1) == 1 else "OpenVINO has no integer kernel for its groups"


def _refuse(options: Options) -> None:
    """16-bit activations.

    Raises:
        OptionError: they are asked for.
    """
    widths = [options.act_bits, *(change.act_bits for _, change in options.override)]
    if any(bits is not None and bits > 8 for bits in widths):
        raise OptionError(
            "OpenVINO removes 16-bit quantizers and computes the layers after them in float",
            where="act_bits",
            hint="Leave it out; keep layers that need more than 8 bits float with 'exclude'",
        )


def _rewrite(model: ir.Model) -> list[Note]:
    """Strides in front of the quantizers, and a bias of its own for each convolution; see the top of this file."""
    return [*strides_in_front(model), *own_biases(model)]


def _adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Round scales, and say which operators a zero point puts into float."""
    for name, qp in numbers.items():
        mantissa, exponent = np.frexp(qp.scale.astype(np.float64))
        rounded = np.ldexp(np.rint(np.ldexp(mantissa, _MANTISSA)), exponent - _MANTISSA)
        numbers[name] = replace(qp, scale=np.asarray(rounded, np.float32))
    strict = {n.name for n in model.graph.all_nodes() if _needs_zero(n)} & plan.quantized.keys()
    shifted = {
        edge.node: site.tensor
        for site in plan.sites
        if site.role != "weight" and site.name in numbers and numbers[site.name].zero_point.any()
        for edge in site.readers
        if edge.node in strict
    }
    return [
        f"'{node}' runs in float on OpenVINO: {tensor!r} has a zero point. Leave the option 'symmetric' out"
        for node, tensor in shifted.items()
    ]


def _needs_zero(node: ir.Node) -> bool:
    return node.op_type == "ConvTranspose" or (
        node.op_type == "MatMul" and not any(is_constant(v) for v in node.inputs)
    )


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, output=False),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, output=False, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, output=False),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), output=False, activation=_without_zero_point),
    OpRule(
        "ConvTranspose",
        Kind.COMPUTE,
        weights=(1,),
        weight_axis=conv_transpose_axis,
        output=False,
        activation=_without_zero_point,
        when=_why_not_transposed,
    ),
    OpRule("Add", Kind.ELEMENTWISE, data=_shortcut, output=False, when=_why_no_shortcut),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, output=False, same_scale=True, when=_why_not_passed_on),
    *(OpRule(op, Kind.ELEMENTWISE, output=False, when=_why_not_pooled) for op in _POOLS),
    *(OpRule(op, Kind.MOVEMENT, output=False, when=_why_not_passed_on) for op in (*_MOVES, "MaxPool", "Resize")),
)

BACKEND = Backend(
    name="openvino",
    title="OpenVINO on a CPU",
    activation=_UINT8,
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={"qdq": QDQ_ONCE, "openvino-fake-quantize": OPENVINO_FAKE_QUANTIZE, "fake-quantize": FAKE_QUANTIZE},
    bias="float",
    channel_activations=True,
    constants="tensors",
    absorbed=_FUNCTIONS,
    drops_absorbed=False,
    weight_bits=frozenset({7, 8}),
    act_bits=frozenset({8}),
    quantizer_bits=frozenset({8}),
    has_whole=COMPOSITE,
    refuses=_refuse,
    rewrite=_rewrite,
    adjust=_adjust,
    runtime="openvino",
    artifacts="model.onnx (QDQ, or FakeQuantize of org.openvinotoolkit)",
    next_step="ovc MODEL.onnx --compress_to_fp16=False",
    verified="OpenVINO 2026.4.1 on x86-64 with VNNI and AMX: integer kernels, numbers",
    unverified="GPU, NPU, ARM",
)
