"""TensorRT, explicit quantization: int8 QuantizeLinear and DequantizeLinear at the inputs of what is quantized.

All grids are symmetric with zero point 0 (written, as int8), weights have a scale for each output channel and are
stored as integers, biases stay float. No quantizer stands behind a convolution before its activation function or
before the Add that TensorRT computes together with it: of a residual Add the other branch is quantized. MaxPool and
Concat share one scale between inputs and output, so that TensorRT can move quantizers across them.

Verified: the parser and the ahead-of-time compiler of TensorRT-RTX 1.7.1 (compute capability 8.6) take the models, at
opsets 13 to 25, and compute Conv, Gemm and MatMul with int8 operands, but for some that run in float although they are
quantized (seen: Conv of one axis with 4 channels, stems, patch embeddings); so do ConvTranspose and average pools.
Known from documents only: TensorRT 8, 10 and 11 themselves, speed, and which branch of a residual Add is better
quantized (NVIDIA's TensorRT developer guide, TensorFlow quantization toolkit and Model Optimizer), and that TensorRT 11
reads opsets up to 25 (its opset guide); older versions read fewer.

The parser refuses a whole model for one operator that it has not, float or quantized: ``onnxq check`` names those that
TensorRT-RTX 1.7.1 lacks (46 of the standard, Compress, DeformConv, Unique and all of sequences among them), forms of
others, tensors of 16-bit and unsigned integers, and NonMaxSuppression and NonZero, for which it has no kernel. It takes
no convolution with groups, and no ConvTranspose, of a number of channels that is free: the weights tell that number,
and it is written into the model.

Weights of 4 bits are those of ``--algorithm weight_only``: TensorRT-RTX multiplies with blocks of int4 in one kernel.

``--algorithm nvfp4`` writes NVFP4, 4-bit floating-point numbers in blocks of 16, for Blackwell GPUs: weights are
stored so, and what they are multiplied with is rounded at run time, by an operator of TensorRT's own. Compiled for
compute capability 12.0, each such product of 14 transformers (391 MatMul and Gemm) has FP4 operands; products of
activations stay float. Weights alone it unpacks as a whole at every run before it multiplies in float. onnxruntime 1.32
has no kernel of these numbers: a result is judged in a simulation, see :mod:`onnxq.ort.fp4_in_float`. MXFP8 (8-bit
ones in blocks of 32) is not written: TensorRT-RTX takes it, and multiplies in float with what it unpacks. Known from
documents only: numbers and speed on a GPU, and Blackwell GPUs of compute capability 10.0.

TensorRT up to version 10 can also quantize by itself, from a float model and a table of ranges: formats
``calibration-cache`` and ``dynamic-range``, see :mod:`onnxq.render.calibration_cache`. No TensorRT has read those here.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.backend_choice import backend_named
from onnxq.backends.tensorrt.branches import ACTIVATIONS, CONVOLUTIONS, LONGEST, WITH_CONSTANT, shortcut
from onnxq.backends.tensorrt.channels import known_channels
from onnxq.backends.tensorrt.lacks import lacks
from onnxq.errors import OptionError
from onnxq.graph.values import is_constant
from onnxq.options import Options
from onnxq.quantized import Quantized
from onnxq.render.calibration_cache import read_cache, read_ranges, write_cache, write_ranges
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import Never, conv_axis, conv_transpose_axis, gemm_axis, matmul_axis, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = [
    "ACROSS",
    "ACTIVATION_SPEC",
    "BACKEND",
    "MULTIPLY",
    "WEIGHT_SPEC",
    "formats",
    "refuse",
    "require_opset",
]

ACTIVATION_SPEC = QuantSpec(signed=True, symmetric=True)
WEIGHT_SPEC = QuantSpec(signed=True, symmetric=True, narrow_range=True)

_MOVES = (
    *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
)
_SHARING = ("Concat", "MaxPool")
"""Operators of which inputs and output share one scale."""
_MIN_OPSET = 13
"""From here on quantizers have a scale for each channel."""


def _why_no_shortcut(node: ir.Node) -> str | None:
    """A residual Add that a convolution computes: its other branch is quantized."""
    if any(is_constant(v) for v in node.inputs):
        return "adds a constant, in the kernel of the operator before it"
    return None if shortcut(node) else "no convolution computes it: neither branch comes from one alone"


def _multiplies(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node is a multiply-accumulate that reads a tensor as data."""
    if node.op_type == "MatMul":
        return True
    return node.op_type in ("Conv", "ConvTranspose", "Gemm") and node.inputs[0] is value


def _is_multiplied(value: ir.Value, across: tuple[str, ...]) -> bool:
    """Whether a multiply-accumulate reads a tensor, as it is or across operators of the types given."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        for use in current.uses():
            if _multiplies(use.node, current):
                return True
            if use.node.op_type in across:
                pending += [v for v in use.node.outputs if v not in seen]
                seen.update(use.node.outputs)
    return False


def _why_not_joined(node: ir.Node) -> str | None:
    """A Concat that an integer operator reads."""
    return None if _is_multiplied(node.outputs[0], _SHARING) else "no integer operator reads it"


def _why_not_pooled(node: ir.Node) -> str | None:
    """A pool before or behind an integer operator."""
    why = plain_max_pool(node) if node.op_type == "MaxPool" else None
    data = node.inputs[0]
    if why is not None or data is None:
        return why
    maker, steps = data.producer(), 0
    while maker is not None and maker.op_type in (*ACTIVATIONS, *WITH_CONSTANT) and steps < LONGEST:
        source = maker.inputs[0]
        maker, steps = source.producer() if source is not None else None, steps + 1
    made = maker is not None and maker.op_type in (*CONVOLUTIONS, "Gemm", "MatMul", "Concat", "MaxPool")
    behind = _is_multiplied(node.outputs[0], (*_SHARING, *_MOVES))
    return None if made or behind else "no operator before or after it runs in integers"


def _column_axis(node: ir.Node, position: int) -> int | None:
    """Output channels of a Gemm or MatMul weight; a weight that packs queries, keys and values has a scale for all.

    TensorRT-RTX 1.7.1 computes such a layer in float otherwise: to make heads it reorders the columns of the weight,
    which it does not do to integers with a scale for each.
    """
    if _is_packed(node):
        return None
    return gemm_axis(node, position) if node.op_type == "Gemm" else matmul_axis(node, position)


def _is_packed(node: ir.Node) -> bool:
    """Whether what a linear layer computes is cut into parts, in heads, that are multiplied with each other."""
    pending = [(node.outputs[0], False, False)]
    seen = set(pending)
    while pending:
        value, cut, in_heads = pending.pop()
        readers = [use.node for use in value.uses()]
        pieces = sum(reader.op_type in ("Gather", "Slice") for reader in readers)
        for reader in readers:
            others = [v for v in reader.inputs if v is not None and v is not value]
            constant = all(is_constant(v) for v in others)
            if reader.op_type == "MatMul" and cut and in_heads and not constant:
                return True
            if not (reader.op_type in _MOVES or (reader.op_type in ("Add", "Div", "Mul") and constant)):
                continue
            now = cut or reader.op_type == "Split" or pieces > 1, in_heads or reader.op_type == "Reshape"
            states = {(output, *now) for output in reader.outputs} - seen
            seen |= states
            pending += states
    return False


def require_opset(options: Options, least: int, lacking: str) -> None:
    """Refuse opsets without what the target's quantizers are made of.

    Raises:
        OptionError: one below ``least`` is asked for; ``lacking`` says what it does not have.
    """
    if options.opset is not None and options.opset < least:
        raise OptionError(
            f"opset {options.opset} has no {lacking}", where="opset", hint=f"Leave it out or ask for {least} or more"
        )


def refuse(options: Options) -> None:
    """Opsets without scales for each channel.

    Raises:
        OptionError: one is asked for.
    """
    require_opset(options, _MIN_OPSET, "scales for each channel")


MULTIPLY = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, output=False),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, output=False),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=_column_axis, output=False, when=plain_gemm),
    OpRule("Gemm:product", Kind.PRODUCT, data=(0, 1), output=False, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=_column_axis, output=False),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), output=False),
)
"""Rows of multiply-accumulates and matrix products."""

_MOVED = Never("it moves values: TensorRT moves the quantizers of its neighbours across it", "passed through")
ACROSS = tuple(OpRule(op, Kind.MOVEMENT, output=False, when=_MOVED) for op in _MOVES)
"""Rows of operators that get no quantizers of their own."""

_RULES = (
    *MULTIPLY,
    OpRule("Add", Kind.ELEMENTWISE, data=shortcut, output=False, when=_why_no_shortcut),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, output=False, same_scale=True, when=_why_not_joined),
    OpRule("AveragePool", Kind.ELEMENTWISE, output=False, when=_why_not_pooled),
    OpRule("GlobalAveragePool", Kind.ELEMENTWISE, output=False, when=_why_not_pooled),
    OpRule("MaxPool", Kind.MOVEMENT, output=False, when=_why_not_pooled),
    *ACROSS,
)


def formats(name: str) -> dict[str, Format]:
    """Ways to write the result of a backend of the name given, explicit quantization first."""
    table = partial(Format, Quantized.fake_quantize, simulated=True)

    def cache(version: int) -> Format:
        write = partial(write_cache, version=version)
        return table(write, lambda path: read_cache(path, backend_named(name)), beside=(".cache",))

    ranges = table(write_ranges, lambda path: read_ranges(path, backend_named(name)), beside=(".json",))
    return {
        "qdq": QDQ,
        "fake-quantize": FAKE_QUANTIZE,
        "calibration-cache": cache(100300),
        "calibration-cache-8": cache(8601),
        "dynamic-range": ranges,
    }


BACKEND = Backend(
    name="tensorrt",
    title="TensorRT",
    activation=ACTIVATION_SPEC,
    weight=WEIGHT_SPEC,
    rules={rule.op: rule for rule in _RULES},
    formats=formats("tensorrt"),
    bias="float",
    constants="tensors",
    absorbed=ACTIVATIONS,
    drops_absorbed=False,
    min_opset=_MIN_OPSET,
    max_opset=25,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    quantizer_bits=frozenset({8}),
    refuses=refuse,
    rewrite=known_channels,
    lacks=lacks,
    runtime="tensorrt",
    artifacts="model.onnx (QDQ); or float model.onnx + model.cache, or + model.json, for TensorRT <= 10",
    next_step="trtexec --onnx=MODEL.onnx  # with --int8 before TensorRT 11",
    verified="TensorRT-RTX 1.7.1: parsed and compiled, most Conv and matrix products with int8 operands",
    unverified="TensorRT itself, speed, numbers on a GPU; calibration cache and dynamic ranges",
)
