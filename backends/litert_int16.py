"""LiteRT with activations of 16 bits: int16, weights int8, for nets that lose too much in 8 bits.

TensorFlow Lite's "16x8". Activations are int16 without a zero point, weights int8 -127 to 127 without one, per channel
for convolutions, Gemm and MatMul, biases int64 in the file and int32 in the QDQ model, the same numbers. What Sigmoid,
Softmax and Tanh write has the scale of their kernels, 1/32768. A Relu, and a Clip from 0 to 6, is a part of the
operator in front of it where that is a convolution, a product with a matrix or arithmetic, else a RELU of its own.

All that LiteRT has int16 kernels for is quantized, whatever it costs: these are plain C++, and on a CPU nets are 20 to
35 times slower with them than with XNNPACK's of floats. It is for microcontrollers and NPUs that multiply 16 by 8 bits.
Float stay Elu, LogSoftmax, a PRelu of several slopes above 1, means and sums of more than 65536 numbers, whose kernels
overflow, and a Resize between elements where its kernel, which counts places in 1/1024 of an element, is 1/128 of one
off or more. HardSwish and HardSigmoid are sums and products; DepthToSpace and SpaceToDepth a TRANSPOSE between two
RESHAPE.
What is said on the page of ``litert`` of the translation, of sizes and of refused models holds here, too.

Formats: ``tflite`` with inputs and outputs as the model has them; ``tflite-int16`` with those that are quantized as
int16 themselves, for a microcontroller or an NPU. Both write the QDQ model, with which ``onnxq verify`` compares; it
is of opset 21 or more. ``qdq`` and ``fake-quantize`` are for onnxruntime alone.

LiteRT's kernels compute what QDQ says but for their rounding, a step off here and there: convolutions and products
multiply their sums by numbers of 15 bits. Gelu, Exp, Tanh, Sigmoid and Softmax are taken from tables of 256 or 513
numbers, straight lines between them: up to 3 steps off on a range of 4; Exp and Softmax some 200 of 32768 where they
are steep, on a range of 60; Tanh and Sigmoid up to 11 where the scale of what they read is a power of two. What is 10
or more below the largest number of its row, what is masked too, Softmax takes for 2 of 32768: in rows of 256 it is up
to 500 steps off, and with all but 8 to 18 numbers masked it had 59 dB in rows of 64, 46 of 256, 35 of 1024, where QDQ
has 75. ``onnxq verify --layers`` names it as a fault; ``--exclude Softmax`` leaves it float.

Verified with ai-edge-litert 2.3.0 on x86-64: numbers of each row of the table. TensorFlow Lite for Microcontrollers
(package tflite-micro of October 2026) gives the codes of LiteRT's kernels, a step off at most, for three convolutional
nets and 133 of 159 models of an operator or two; it has no int16 of EXP, GATHER, GELU, REDUCE_MAX, REDUCE_MIN,
RESIZE_BILINEAR and TILE. Arm's compiler Vela 5.2 places all operators of the three nets and of 125 of these models on
an Ethos-U55, of 134 on an Ethos-U85. To a CPU it leaves GELU, most of GATHER, means over several samples, and on an
Ethos-U55 products of two activations. From documents only: Hexagon, phones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend, OpRule
from onnxq.backends import litert
from onnxq.backends.litert.wide import counts_places, has_slopes_up_to_one, sums_few
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_LACKS = frozenset({"Elu"})
"""Rows of the target with int8 whose kernels have no int16."""
_WHEN = {
    "PRelu": has_slopes_up_to_one,
    "Resize": counts_places,
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum"), sums_few),
}


def _runtime_file(model: ir.Model, path: Path) -> Path:
    """A model alone as LiteRT takes it."""
    return litert.runtime_file(BACKEND, model, path)


def _rules() -> Mapping[str, OpRule]:
    """The rows of the target with int8, but for what is otherwise in int16."""
    kept = {op: rule for op, rule in litert.BACKEND.rules.items() if op not in _LACKS}
    return kept | {op: replace(kept[op], when=when) for op, when in _WHEN.items()}


BACKEND: Backend = replace(
    litert.BACKEND,
    name="litert_int16",
    title="LiteRT (TensorFlow Lite), int16 activations",
    activation=QuantSpec(bits=16, signed=True, symmetric=True),
    rules=_rules(),
    formats={name.replace("int8", "int16"): each for name, each in litert.BACKEND.formats.items()},
    by_cost=False,
    weight_bits=frozenset({8}),
    act_bits=frozenset({16}),
    runtime_file=_runtime_file,
    verified="LiteRT 2.3.0 on x86-64: numbers; TensorFlow Lite for Microcontrollers, Vela 5.2: three nets",
    unverified="phones, Hexagon, microcontrollers themselves",
)
