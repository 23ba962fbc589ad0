"""Group 8: numbers that are very large, very small, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxq import Options
from tests.cases import g08
from tests.contract import Outcome, infer, quantize_checked, sqnr
from tests.models import build, constants_of, f32, feeds_for, images, normal

RANGES = ("mse", "minmax", "entropy", "percentile", "ema", "std", "lsq")


def dequantized(result: Outcome, prefix: str) -> np.ndarray[Any, Any]:
    """A stored constant of the result, in float64."""
    constants = constants_of(result.proto)
    dq = next(
        n for n in result.proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"{prefix}_quantized"
    )
    numbers, scale = (constants[name].astype(np.float64) for name in dq.input[:2])
    axis = next((a.i for a in dq.attribute if a.name == "axis"), 0)
    if scale.ndim:
        scale = scale.reshape([-1 if i == axis else 1 for i in range(numbers.ndim)])
    return np.asarray(numbers * scale)


@pytest.mark.parametrize("method", RANGES)
def test_zero_activation(method: str) -> None:
    result = quantize_checked(*g08.zero_activation(), Options(placement="all", range=method))
    zero = next(s for s in result.quantized.plan.sites if s.tensor == "r")
    qp = result.quantized.qparams[zero.name]
    assert np.isfinite(qp.scale)
    assert qp.scale > 0
    assert qp.zero_point == 0, "at the lowest integer"
    assert "always zero" in result.notes


@pytest.mark.parametrize("method", RANGES)
def test_zero_input(method: str) -> None:
    zeros = [{"x": np.zeros((1, 3, 8, 8), np.float32)} for _ in range(3)]
    result = quantize_checked(g08.two_layers(), zeros, Options(placement="all", range=method))
    assert "always zero" in result.notes


@pytest.mark.parametrize("method", RANGES)
@pytest.mark.parametrize("value", [3.0, -3.0, 1e-20, 1e20])
def test_constant_activation(method: str, value: float) -> None:
    same = [{"x": np.full((1, 3, 8, 8), value, np.float32)} for _ in range(3)]
    quantize_checked(g08.two_layers(b=f32(np.zeros(4))), same, Options(placement="all", range=method), agree=15)


def test_zero_weight_and_zero_channels() -> None:
    w = normal(4, 3, 3, 3)
    w[1] = 0
    quantize_checked(g08.two_layers(w=w), images(1, 3, 8, 8))
    quantize_checked(g08.two_layers(v=f32(np.zeros((4, 4, 3, 3)))), images(1, 3, 8, 8))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("symmetric", [True, None])
def test_tiny_channel_big_bias(per_channel: bool, symmetric: bool | None) -> None:
    w, b = normal(4, 3, 3, 3), f32([5, 5, 5, 5])
    w[2] *= 1e-12
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w, b) }", w=w, b=b)
    options = Options(placement="all", per_channel=per_channel, symmetric=symmetric)
    result = quantize_checked(model, images(1, 3, 8, 8), options, least=30)
    np.testing.assert_allclose(dequantized(result, "b")[2], 5.0, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 4), (4,)])
@pytest.mark.parametrize("scale", [1e-12, 1e-30, 1e-42, 0.0])
def test_tiny_channel_bias_gemm_1x_n(shape: tuple[int, ...], scale: float) -> None:
    result = quantize_checked(
        *g08.tiny_channel_bias_gemm_row(shape, scale), Options(placement="all", symmetric=True), least=30
    )
    np.testing.assert_allclose(dequantized(result, "b").reshape(-1), [5, 5, -5, 5], rtol=1e-3)


@pytest.mark.parametrize("factor", [1e-12, 1e-6, 1e6, 1e12])
def test_weights_of_any_size(factor: float) -> None:
    model = g08.two_layers(w=normal(4, 3, 3, 3) * f32(factor), b=normal(4, seed=1) * f32(factor))
    quantize_checked(model, images(1, 3, 8, 8))


@pytest.mark.parametrize("factor", [1e-30, 1e-12, 1e12, 1e25])
def test_activations_of_any_size(factor: float) -> None:
    feeds = [{"x": sample["x"] * f32(factor)} for sample in images(1, 3, 8, 8)]
    quantize_checked(g08.two_layers(b=f32(np.zeros(4))), feeds)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e35])
def test_inf_weight(value: float) -> None:
    result = quantize_checked(*g08.inf_weight(value), least=None)
    assert "'w'" in result.reasons["c1"]
    assert "NaN or infinite" in result.reasons["c1"] or "beyond 1e30" in result.reasons["c1"]


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_inf_bias(value: float) -> None:
    b = normal(4, seed=1)
    b[2] = value
    result = quantize_checked(g08.two_layers(b=b), images(1, 3, 8, 8), least=None)
    assert "'b'" in result.reasons["c1"]


def test_one_outlier_1e6() -> None:
    """The total is all outlier: the worst and the median sample must tell."""
    model, feeds = g08.one_outlier_1e6()
    result = quantize_checked(model, feeds)
    assert result.sqnr["y"] > 30
    wanted, got = (infer(m, feeds, optimize=True)["y"] for m in (model, result.proto))
    one_by_one = sorted(sqnr([w], [g]) for w, g in zip(wanted, got, strict=True))
    assert result.quantized.verification is not None
    errors = result.quantized.verification.outputs["y"]
    assert errors.median == pytest.approx((one_by_one[3] + one_by_one[4]) / 2, abs=0.1)
    assert errors.worst == pytest.approx(one_by_one[0], abs=0.1)
    assert errors.worst_sample != 5
    assert errors.median < 5
    assert "the median sample has" in result.notes


@pytest.mark.parametrize("method", ["percentile:99.9", "entropy"])
def test_one_outlier_1e6_clipped(method: str) -> None:
    """Both methods cut it off, and the values of each layer that depend on it: four in 8192 of the last one."""
    feeds = images(1, 3, 8, 8, samples=128)
    feeds[5]["x"][0, 0, 0, 0] = 1e6
    model = g08.two_layers()
    result = quantize_checked(model, feeds, Options(placement="all", range=method), least=None)
    clean = [feed for i, feed in enumerate(feeds) if i != 5]
    wanted, got = (infer(m, clean, optimize=True)["y"] for m in (model, result.proto))
    assert sqnr(wanted, got) > 20


def test_one_input_channel_200_times_larger() -> None:
    """8 bits per tensor leave 1 dB; the layer is found, kept float, and named."""
    model, feeds = g08.one_input_channel_200_times_larger()
    result = quantize_checked(model, feeds, Options(), least=25)
    assert result.quantized.plan.quantized.keys() == {"mm1", "mm2"}
    assert "dB at the outputs" in result.reasons["mm0"]


def test_denormal_values() -> None:
    model = build(
        "(float[3, 16] x) => (float[3, 4] y) { y = Gemm (x, w, b) }", w=normal(16, 4) * f32(1e-39), b=f32(np.zeros(4))
    )
    quantize_checked(model, images(3, 16), least=None, agree=-1000)


def test_huge_sums_that_overflow_the_float_model() -> None:
    """Infinite outputs of the float model are no reason to fail."""
    result = quantize_checked(*g08.infinite_values(), least=None, agree=0)
    assert "infinite values in tensor 'a'" in result.notes


def test_a_tiny_and_a_huge_operand() -> None:
    quantize_checked(*g08.tiny_and_huge_operand())


def test_integers_as_floats_stay_exact_where_the_range_allows() -> None:
    model = build("(float[4, 8] x) => (float[4, 8] y) { y = MatMul (x, w) }", w=f32(np.eye(8)))
    feeds = [{"x": f32(np.arange(32).reshape(4, 8) * 8 + i)} for i in range(3)]
    result = quantize_checked(model, feeds_for(model) and feeds, least=30)
    assert result.quantized.plan.quantized
