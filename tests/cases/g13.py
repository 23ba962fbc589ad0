"""Group 13: models that are quantized already, in whole or in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal


def int8(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


@case("G13")
def qlinearconv_inside() -> Given:
    """A QLinearConv inside: left alone."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            q = QuantizeLinear (x, sx, zx)
            [old] c = QLinearConv (q, sx, zx, w, sw, zw, sy, zx)
            d = DequantizeLinear (c, sy, zx)
            [new] y = Conv (d, v)
        }""",
        sx=f32(0.03),
        zx=np.uint8(128),
        w=int8(4, 3, 3, 3),
        sw=f32(0.005),
        zw=np.int8(0),
        sy=f32(0.05),
        v=normal(4, 4, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G13")
def quantizers_without_zero_point(form: str = "absent") -> Given:
    """Quantizers without a zero point: it is 0 of uint8."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            r = Relu (x)
            q = QuantizeLinear (r, s)
            d = DequantizeLinear (q, s)
            [c] y = Conv (d, w)
        }""",
        s=f32(0.015),
        w=normal(4, 3, 3, 3),
    )
    if form == "empty":
        for node in model.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                node.input.append("")
    return Given(model, images(1, 3, 8, 8))


@case("G13")
def matmulnbits() -> Given:
    """A MatMulNBits inside: left alone."""
    model = build(
        """(float[4, 32] x) => (float[4, 8] y) {
            [old] h = com.microsoft.MatMulNBits <K = 32, N = 16, bits = 4, block_size = 16> (x, packed, scales)
            [new] y = MatMul (h, w)
        }""",
        domains={"com.microsoft": 1},
        packed=np.random.default_rng(0).integers(0, 256, (16, 2, 8)).astype(np.uint8),
        scales=f32(np.random.default_rng(1).random(32) * 0.1),
        w=normal(16, 8),
    )
    return Given(model, images(4, 32))


@case("G13")
def microsoft_quantizers() -> Given:
    """Quantizers of com.microsoft with 16 bits: left alone."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            q = com.microsoft.QuantizeLinear (x, s, z)
            d = com.microsoft.DequantizeLinear (q, s, z)
            [old] h = Conv (d, w)
            [new] y = Conv (h, v)
        }""",
        domains={"com.microsoft": 1},
        s=f32(0.0001),
        z=np.uint16(32768),
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G13")
def quantized_weights_only() -> Given:
    """Weights behind DequantizeLinear, activations in float."""
    model = build(
        """(float[4, 8] x) => (float[4, 8] y) {
            d = DequantizeLinear <axis = 1> (w, s)
            [a] h = MatMul (x, d)
            [b] y = MatMul (h, v)
        }""",
        w=int8(8, 8),
        s=f32(np.linspace(0.001, 0.01, 8)),
        v=normal(8, 8),
    )
    return Given(model, feeds_for(model))


@case("G13", least=15)
def half_quantized() -> Given:
    """The first half of the model is quantized, it passes bit by bit."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] h, float[1, 4, 4, 4] y) {
            q = QuantizeLinear (x, sx, zx)
            dx = DequantizeLinear (q, sx, zx)
            dw = DequantizeLinear <axis = 0> (w, sw, zw)
            c = Conv (dx, dw)
            qc = QuantizeLinear (c, sy, zx)
            h = DequantizeLinear (qc, sy, zx)
            [new] y = Conv (h, v)
        }""",
        sx=f32(0.03),
        zx=np.uint8(128),
        w=int8(4, 3, 3, 3),
        sw=f32(np.full(4, 0.004)),
        zw=np.zeros(4, np.int8),
        sy=f32(0.04),
        v=normal(4, 4, 3, 3),
    )
    feeds = images(1, 3, 8, 8)
    return Given(model, feeds)


@case("G13")
def quantized_output() -> Given:
    """A graph output is uint8."""
    model = build(
        """(float[1, 3, 8, 8] x) => (uint8[1, 4, 6, 6] y) {
            c = Conv (x, w)
            y = QuantizeLinear (c, s, z)
        }""",
        s=f32(0.05),
        z=np.uint8(128),
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G13")
def dequantized_input() -> Given:
    """A graph input is uint8."""
    model = build(
        """(uint8[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            d = DequantizeLinear (x, s, z)
            y = Conv (d, w)
        }""",
        s=f32(0.05),
        z=np.uint8(128),
        w=normal(4, 3, 3, 3),
    )
    feeds = [{"x": np.random.default_rng(i).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)} for i in range(4)]
    return Given(model, feeds)


@case("G13")
def convinteger_inside() -> Given:
    """A ConvInteger behind a DynamicQuantizeLinear: left alone, the Conv behind it is quantized."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            q, s, z = DynamicQuantizeLinear (x)
            [old] i = ConvInteger (q, w, z)
            f = Cast <to = 1> (i)
            k = Mul (s, sw)
            d = Mul (f, k)
            [new] y = Conv (d, v)
        }""",
        w=np.random.default_rng(0).integers(0, 256, (4, 3, 3, 3)).astype(np.uint8),
        sw=f32(0.005),
        v=normal(4, 4, 1, 1),
    )
    return Given(model, images(1, 3, 8, 8))


def quant_in_floats() -> onnx.ModelProto:
    """What `qonnx_quant` computes."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            d = Div (x, s)
            r = Round (d)
            c = Clip (r, low, high)
            h = Mul (c, s)
            y = Conv (h, w)
        }""",
        s=f32(0.1),
        low=f32(-127),
        high=f32(127),
        w=normal(4, 3, 3, 3),
    )


@case("G13", same=quant_in_floats)
def qonnx_quant() -> Given:
    """A Quant operator of QONNX, which onnxruntime does not know: written as one that it does."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            [odd] h = qonnx.custom_op.general.Quant <narrow = 1, signed = 1> (x, s, z, bits)
            y = Conv (h, w)
        }""",
        domains={"qonnx.custom_op.general": 1},
        s=f32(0.1),
        z=f32(0),
        bits=f32(8),
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))
