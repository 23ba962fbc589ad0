"""Scales of masks of the lowest float, as onnxruntime's quantizer writes: their outermost integer is beyond float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.errors import ModelError
from tests.contract import infer
from tests.models import build, f32, images, normal

LOWEST = float(np.finfo(np.float32).min)


def masked(scale: float, zero: Any) -> onnx.ModelProto:
    """A causal mask behind a product, in a quantizer of its own, and a softmax."""
    return build(
        """(float[4, 8] x) => (float[4, 4] y) {
            xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)
            wd = DequantizeLinear (w, sw, zw)
            a = MatMul (xd, wd)
            aq = QuantizeLinear (a, sx, zx)  ad = DequantizeLinear (aq, sx, zx)
            m = Add (ad, mask)
            mq = QuantizeLinear (m, sm, zm)  md = DequantizeLinear (mq, sm, zm)
            p = Softmax (md)
            pq = QuantizeLinear (p, sp, zp)  y = DequantizeLinear (pq, sp, zp)
        }""",
        opset=21,
        ir_version=10,
        w=np.clip(np.rint(normal(8, 4, scale=40.0)), -127, 127).astype(np.int8),
        mask=np.triu(np.full((4, 4), LOWEST, np.float32), 1),
        sx=f32(0.03),
        zx=np.int8(0),
        sw=f32(0.01),
        zw=np.int8(0),
        sm=f32(scale),
        zm=zero,
        sp=f32(1 / 255),
        zp=np.uint8(0),
    )


@pytest.mark.parametrize(
    ("scale", "zero"),
    [(-LOWEST / 127, np.int8(0)), (-LOWEST / 65535 * (1 + 1e-7), np.uint16(65535)), (-LOWEST / 32767, np.int16(0))],
)
def test_a_quantized_mask_of_the_lowest_float_is_taken(scale: float, zero: Any) -> None:
    given = masked(scale, zero)
    made = onnxq.deploy(given, backend="tvm")
    (grid,) = (made.qparams[site.name] for site in onnxq.read(given).plan.sites if site.tensor == "m")
    assert np.isfinite([grid.lo, grid.hi]).all()
    feeds = images(4, 8)
    want, got = infer(given, feeds, optimize=False), infer(ir.to_proto(made.rendered()), feeds, optimize=False)
    np.testing.assert_allclose(got["y"], want["y"], atol=1 / 254)
    comparison = onnxq.compare(given, made, feeds)
    assert comparison.outputs["y"].sqnr > 40


def test_a_mask_of_minus_infinity_is_none() -> None:
    with pytest.raises(ModelError, match="not a finite number") as error:
        onnxq.read(masked(np.inf, np.uint8(255)))
    assert "leave that tensor in float" in str(error.value)
