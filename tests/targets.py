"""Small graphs that between them hold what targets treat differently; every target is held to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

import onnxq
from onnxq import Options
from onnxq.catalog import backends
from tests.models import build, f32, normal

__all__ = ["BY_RUNTIMES", "GRAPHS", "TARGETS", "plan_text"]

TARGETS = tuple(target.name for target in backends())
BY_RUNTIMES = frozenset({("qnn", "context"), ("qnn", "dlc"), ("ncnn", "int8")})
"""Targets and formats that only a vendor's runtime writes."""


def residual() -> onnx.ModelProto:
    """A residual net: Conv-Relu, depthwise with Relu6, Add of a shortcut, pools, a Gemm that is the output."""
    return build(
        """(float[1, 3, 16, 16] x) => (float[1, 10] y) {
            [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [stem_act] r = Relu (a)
            [depthwise] d = Conv <pads = [1, 1, 1, 1], group = 8> (r, w2, b2)
            [depthwise_act] e = Clip (d, zero, six)
            [project] c = Conv (e, w3)
            [shortcut] s = Add (c, r)
            [act] t = Relu (s)
            [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
            [mean] g = GlobalAveragePool (p)
            [flat] f = Flatten (g)
            [head] y = Gemm <transB = 1> (f, w4, b4)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 1, 3, 3, seed=2),
        b2=normal(8, seed=3, scale=0.1),
        w3=normal(8, 8, 1, 1, seed=4),
        w4=normal(10, 8, seed=5),
        b4=normal(10, seed=6, scale=0.1),
        zero=f32(0),
        six=f32(6),
    )


def branches() -> onnx.ModelProto:
    """Two branches joined by Concat, a weight that both share, Pad, a mean pool, a Conv output that is an output."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] side, float[1, 8, 4, 4] y) {
            [left] a = Conv <pads = [1, 1, 1, 1]> (x, shared)
            [right] side = Conv <pads = [1, 1, 1, 1]> (x, shared)
            [leaky] l = LeakyRelu <alpha = 0.1> (a)
            [join] c = Concat <axis = 1> (l, side)
            [pad] q = Pad (c, pads)
            [last] b = Conv (q, w2)
            [mean] y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (b)
        }""",
        shared=normal(4, 4, 3, 3),
        w2=normal(8, 8, 3, 3, seed=1),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    )


def upsampling() -> onnx.ModelProto:
    """ConvTranspose plain and grouped, Resize nearest and linear, a Sigmoid gate, HardSwish."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 32, 32] y) {
            [up] a = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (x, w1, b1)
            [act] h = HardSwish (a)
            [grouped] d = ConvTranspose <group = 2, kernel_shape = [1, 1]> (h, w2)
            [gate] s = Sigmoid (d)
            [gated] m = Mul (d, s)
            [nearest] n = Resize <mode = "nearest"> (m, roi, scales)
            [refine] c = Conv <pads = [1, 1, 1, 1]> (n, w3)
            [linear] y = Resize <mode = "linear"> (c, roi, same)
        }""",
        w1=normal(4, 4, 2, 2),
        b1=normal(4, seed=1, scale=0.1),
        w2=normal(4, 2, 1, 1, seed=2),
        w3=normal(4, 4, 3, 3, seed=3),
        roi=f32([]),
        scales=f32([1, 1, 2, 2]),
        same=f32([1, 1, 1, 1]),
    )


def attention() -> onnx.ModelProto:
    """One head of attention: MatMuls with weights and of activations, Softmax, a scalar factor, residual, LayerNorm."""
    return build(
        """(float[1, 8, 16] x) => (float[1, 8, 16] y) {
            [norm] n = LayerNormalization <axis = -1> (x, gamma, beta)
            [query] q = MatMul (n, wq)
            [key] k = MatMul (n, wk)
            [value] v = MatMul (n, wv)
            [turn] kt = Transpose <perm = [0, 2, 1]> (k)
            [scores] s = MatMul (q, kt)
            [scaled] z = Mul (s, factor)
            [softmax] p = Softmax <axis = -1> (z)
            [mix] o = MatMul (p, v)
            [out] u = MatMul (o, wo)
            [biased] b = Add (u, bias)
            [skip] y = Add (b, x)
        }""",
        wq=normal(16, 16),
        wk=normal(16, 16, seed=1),
        wv=normal(16, 16, seed=2),
        wo=normal(16, 16, seed=3),
        bias=normal(16, seed=4, scale=0.1),
        gamma=np.ones(16, np.float32),
        beta=np.zeros(16, np.float32),
        factor=f32(0.25),
    )


def classifier() -> onnx.ModelProto:
    """Gemm with its weight both ways round, a reshape and a slice between, Tanh, PRelu, a mean over positions."""
    return build(
        """(float[2, 4, 12] x) => (float[2, 5] y) {
            [mean] m = ReduceMean <axes = [1], keepdims = 0> (x)
            [first] a = Gemm <transB = 1> (m, w1, b1)
            [prelu] p = PRelu (a, slope)
            [second] b = Gemm (p, w2, b2)
            [tanh] t = Tanh (b)
            [cut] c = Slice (t, start, end, axis)
            [shape] r = Reshape (c, dims)
            [last] y = Gemm <transB = 1> (r, w3)
        }""",
        w1=normal(16, 12, scale=0.3),
        b1=normal(16, seed=1, scale=0.1),
        slope=f32([0.25]),
        w2=normal(16, 8, seed=2, scale=0.3),
        b2=normal(8, seed=3, scale=0.1),
        start=np.array([0]),
        end=np.array([6]),
        axis=np.array([1]),
        dims=np.array([2, 6]),
        w3=normal(5, 6, seed=4, scale=0.3),
    )


GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual,
    "branches": branches,
    "upsampling": upsampling,
    "attention": attention,
    "classifier": classifier,
}


def plan_text(target: str, graph: str) -> str:
    """The plan of a graph for a target, all that the target's table allows quantized."""
    return onnxq.plan(GRAPHS[graph](), backend=target, options=Options(placement="all", reduce_range=False)).to_text()
