"""TensorRT, explicit quantization in 8-bit floating-point numbers: FP8 (E4M3) at the inputs of what multiplies.

The inputs of convolutions without groups, of linear layers and of products of activations are quantized, weights with
a scale for each output channel; a scale is the largest magnitude divided by 448, the largest number of the format.
Biases, sums, pools and normalizations stay float, and so do grouped and transposed convolutions, for which TensorRT has
no such kernels. FP8 holds small numbers beside large ones, with some 31 dB whatever the range, where int8 needs the
range to be used evenly; on well-behaved tensors int8 is better. It runs on GPUs from compute capability 8.9 on.

Verified: TensorRT-RTX 1.7.1 parses the models, compiles them for compute capability 8.9 (it refuses 8.6), and computes
each quantized Conv, Gemm and MatMul with FP8 operands; grouped and transposed convolutions it computes in float though
they are quantized. onnxruntime computes the models without graph optimizations. Known from documents only: TensorRT
itself, speed, and that FP8 and int8 cannot be mixed in a network (NVIDIA's TensorRT developer guide).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from onnxq.backend import Format
from onnxq.backends import tensorrt
from onnxq.errors import OptionError
from onnxq.options import Options
from onnxq.rows import Never
from onnxq.spec import QuantSpec, Scheme

__all__ = ["BACKEND", "refuse"]

_SPEC = QuantSpec(scheme=Scheme.FLOAT8)
_MIN_OPSET = 19


def _why_float(node: ir.Node) -> str | None:
    """A convolution without groups."""
    groups = node.attributes.get_int("group", 1)
    return None if groups == 1 else f"TensorRT has no FP8 kernel for a convolution of {groups} groups"


def refuse(options: Options) -> None:
    """Opsets without FP8, grids that are not symmetric.

    Raises:
        OptionError: one is asked for.
    """
    tensorrt.require_opset(options, _MIN_OPSET, "8-bit floating-point numbers")
    if options.symmetric is False:
        raise OptionError("floating-point numbers have no zero point", where="symmetric", hint="Leave it out")


_WHEN: dict[str, Callable[[ir.Node], str | None]] = {
    "Conv": _why_float,
    "ConvTranspose": Never("TensorRT has no FP8 kernel for it"),
}
_RULES = [replace(rule, when=_WHEN.get(rule.op, rule.when)) for rule in tensorrt.MULTIPLY]
_FORMATS: dict[str, Format] = {"qdq": tensorrt.BACKEND.formats["qdq"]}

BACKEND = replace(
    tensorrt.BACKEND,
    name="tensorrt_fp8",
    title="TensorRT, 8-bit floating point",
    activation=_SPEC,
    weight=_SPEC,
    rules={rule.op: rule for rule in (*_RULES, *tensorrt.ACROSS)},
    formats=_FORMATS,
    min_opset=_MIN_OPSET,
    artifacts="model.onnx (QDQ, float8e4m3fn)",
    next_step="trtexec --onnx=MODEL.onnx --stronglyTyped",
    refuses=refuse,
    verified="TensorRT-RTX 1.7.1: parsed and compiled, most Conv and matrix products with FP8 operands",
    unverified="TensorRT itself, speed, numbers on a GPU",
)
