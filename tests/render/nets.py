"""Tiny nets with each operator that has a QOperator, and what tests ask of their renderings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

import onnxq
from onnxq import Options, Quantized
from tests.contract import infer
from tests.models import build, constants_of, f32, feeds_for, normal

__all__ = ["IMAGE", "NETS", "ROWS", "B", "V", "W", "kinds", "lsb", "quantized"]

Array = NDArray[Any]

W, B = normal(16, 8, 3, 3), normal(16, scale=0.5)
V = normal(8, 16, 3, 3, seed=1)
IMAGE = "(float[1, 8, 12, 12] x) => (float[n, c, h, w] y)"
ROWS = "(float[2, 6, 32] x) => (float[n, l, d] y)"

NETS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "conv": (f"{IMAGE} {{ y = Conv <pads = [1, 1, 1, 1]> (x, w, b) }}", {"w": W, "b": B}, {"QLinearConv"}),
    "relu": (f"{IMAGE} {{ a = Conv (x, w, b)\n y = Relu (a) }}", {"w": W, "b": B}, {"QLinearConv"}),
    "clip": (
        f"{IMAGE} {{ a = Conv (x, w, b)\n y = Clip (a, lo, hi) }}",
        {"w": W, "b": B, "lo": f32(-0.5), "hi": f32(6)},
        {"QLinearConv"},
    ),
    "strided": (
        f'{IMAGE} {{ y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2], group = 2> (x, w) }}',
        {"w": normal(16, 4, 3, 3)},
        {"QLinearConv"},
    ),
    "depthwise": (
        f"{IMAGE} {{ y = Conv <group = 8, dilations = [2, 2]> (x, w) }}",
        {"w": normal(8, 1, 3, 3)},
        {"QLinearConv"},
    ),
    "conv1d": (
        "(float[1, 8, 20] x) => (float[n, c, l] y) { y = Conv (x, w, b) }",
        {"w": normal(16, 8, 3), "b": B},
        {"QLinearConv"},
    ),
    "conv3d": (
        "(float[1, 8, 4, 5, 6] x) => (float[n, c, d, h, w] y) { y = Conv (x, k) }",
        {"k": normal(4, 8, 3, 3, 3)},
        {"QLinearConv"},
    ),
    "gemm": (
        "(float[4, 32] x) => (float[4, 16] y) { a = Gemm (x, w, b)\n y = LeakyRelu <alpha = 0.2> (a) }",
        {"w": normal(32, 16), "b": B},
        {"QGemm", "QLinearLeakyRelu"},
    ),
    "gemm of rows": (
        "(float[4, 32] x) => (float[4, 16] y) { a = Gemm <transB = 1> (x, w, b)\n s = Sigmoid (a)\n y = Add (s, a) }",
        {"w": normal(16, 32), "b": normal(1, 16)},
        {"QGemm", "QLinearSigmoid", "QLinearAdd"},
    ),
    "matmul": (
        f"{ROWS} {{ a = MatMul (x, w)\n y = Add (a, b) }}",
        {"w": normal(32, 16), "b": B},
        {"QLinearMatMul", "QLinearAdd"},
    ),
    "product": (
        f"{ROWS} {{ t = Transpose <perm = [0, 2, 1]> (x)\n p = MatMul (x, t)\n s = Softmax (p)\n y = MatMul (s, x) }}",
        {},
        {"QLinearSoftmax", "Transpose"},
    ),
    "softmax of an inner axis": (
        f"{ROWS} {{ a = MatMul (x, w)\n s = Softmax <axis = 1> (a)\n y = Add (s, x) }}",
        {"w": normal(32, 32)},
        {"QLinearSoftmax", "QLinearAdd"},
    ),
    "squeeze and excitation": (
        f"""{IMAGE} {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            g = GlobalAveragePool (a)
            h = Conv (g, k)
            s = Sigmoid (h)
            y = Mul (a, s)
        }}""",
        {"w": W, "b": B, "k": normal(16, 16, 1, 1)},
        {"QLinearConv", "QLinearGlobalAveragePool", "QLinearSigmoid", "QLinearMul"},
    ),
    "pools": (
        f"""{IMAGE} {{
            a = Conv (x, w)
            m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)
            y = AveragePool <kernel_shape = [3, 3], pads = [1, 0, 0, 1], strides = [2, 2], ceil_mode = 1> (m)
        }}""",
        {"w": W},
        {"QLinearConv", "MaxPool", "QLinearAveragePool"},
    ),
    "concat": (
        f"{IMAGE} {{ a = Sigmoid (x)\n l = LeakyRelu <alpha = 0.1> (x)\n y = Concat <axis = 1> (l, a, k) }}",
        {"k": normal(1, 2, 12, 12)},
        {"QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu"},
    ),
    "moved": (
        """(float[1, 8, 12, 12] x) => (float[n, l, d] y) {
            a = Conv (x, w)
            t = Transpose <perm = [0, 2, 3, 1]> (a)
            r = Reshape (t, shape)
            u, v = Split <axis = 1> (r)
            p = MatMul (u, m)
            q = MatMul (v, m)
            y = Add (p, q)
        }""",
        {"w": W, "shape": np.array([1, 100, 16]), "m": normal(16, 16)},
        {"QLinearConv", "Transpose", "Reshape", "Split", "QLinearMatMul", "QLinearAdd"},
    ),
    "resized": (
        f'{IMAGE} {{ a = Conv (x, w)\n r = Resize <mode = "nearest"> (a, , scales)\n y = Conv (r, v) }}',
        {"w": W, "scales": f32([1, 1, 2, 2]), "v": V},
        {"QLinearConv", "Resize"},
    ),
    "float between": (
        f"{IMAGE} {{ a = Conv (x, w)\n t = Tanh (a)\n y = Conv (t, v) }}",
        {"w": W, "v": V},
        {"QLinearConv", "Tanh", "QuantizeLinear", "DequantizeLinear"},
    ),
}


def quantized(text: str, constants: dict[str, Any], target: str = "onnx_qnn", **options: Any) -> Quantized:
    model = build(text, **constants)
    chosen = Options(placement="all", format="qoperator", **options)
    return onnxq.quantize(model, feeds_for(model, samples=3), backend=target, options=chosen)


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def lsb(model: onnx.ModelProto, q: Quantized) -> float:
    """One step of the last quantizer in front of the output; of a float output, 1/255 of what its numbers span."""
    node = next(n for n in model.graph.node if "y" in n.output)
    if node.op_type == "DequantizeLinear":
        return float(constants_of(model)[node.input[1]])
    feeds = feeds_for(ir.to_proto(q.model), samples=3)
    return float(np.ptp(infer(ir.to_proto(q.model), feeds, optimize=False)["y"])) / 255
