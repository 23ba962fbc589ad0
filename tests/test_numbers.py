"""Scales and zero points of a plan's sites."""

from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.qparams import dequantize, quantize
from tests.models import build, f32, images, normal
from tests.planning.test_planner import residual

ALL = Options(placement="all", bias_correction=False)


def test_tied_sites_share_the_numbers_of_their_root() -> None:
    q = onnxq.quantize(residual(), images(1, 16, 8, 8), options=ALL)
    assert q.plan.by_name["p"].tied_to == "t"
    assert q.qparams["p"] == q.qparams["t"]


def test_weights_take_the_absolute_maximum_of_each_channel() -> None:
    model = residual()
    q = onnxq.quantize(model, images(1, 16, 8, 8), options=ALL)
    weight = normal(16, 16, 3, 3)
    np.testing.assert_allclose(q.qparams["w1"].scale, np.abs(weight).max(axis=(1, 2, 3)) / 127, rtol=1e-6)


def test_bias_scale_is_the_product_and_the_bias_exact_to_half_a_step() -> None:
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w, b) }", w=normal(8, 8, 1, 1), b=normal(8)
    )
    q = onnxq.quantize(model, images(1, 8, 4, 4), options=ALL)
    scale = q.qparams["b"].scale.reshape(-1)
    np.testing.assert_array_equal(scale, q.qparams["x"].scale * q.qparams["w"].scale)
    stored = dequantize(quantize(normal(8), q.qparams["b"]), q.qparams["b"])
    assert (np.abs(stored - normal(8)) <= scale / 2 + 1e-7).all()


@pytest.mark.parametrize("shrink", [1e-12, 1e-30, 1e-38, 0.0])
def test_a_bias_too_large_for_its_scale_raises_the_scale_of_the_weight(shrink: float) -> None:
    weight = normal(8, 8, 1, 1)
    weight[2] *= np.float32(shrink)
    model = build("(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w, b) }", w=weight, b=f32([5.0] * 8))
    q = onnxq.quantize(model, images(1, 8, 4, 4), options=ALL)
    stored = dequantize(quantize(f32([5.0] * 8), q.qparams["b"]), q.qparams["b"])
    assert stored[2] == pytest.approx(5.0, rel=2e-5)
    assert (q.qparams["b"].scale > 0).all() and np.isfinite(q.qparams["b"].scale).all()


def test_fixed_ranges_follow_from_the_operator() -> None:
    model = build(
        "(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) { a = Conv (x, w)\n s = Sigmoid (a)\n y = Conv (s, w) }",
        w=normal(16, 16, 1, 1),
    )
    q = onnxq.quantize(model, images(1, 16, 8, 8), options=ALL)
    assert float(q.qparams["s"].hi) == pytest.approx(1.0)
    assert int(q.qparams["s"].zero_point) == 0
