"""Mask values that are finite, and dead channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.calibration.mask_reach import mask_value
from onnxq.calibration.statistics import TensorStatistics
from tests.contract import ALL, quantize_checked
from tests.models import build, images, masked_attention, normal

Feeds = list[dict[str, NDArray[Any]]]

WITH = Options(placement="all", algorithms=("outliers", "bias_correction"))


def attention() -> onnx.ModelProto:
    return masked_attention("sm = Add (sc, m)")


def padded(mask: float, samples: int = 10) -> Feeds:
    """Sentences of different lengths, ``mask`` where they have ended."""
    rng = np.random.default_rng(0)
    feeds: Feeds = []
    for _ in range(samples):
        m = np.zeros((1, 1, 16), np.float32)
        m[..., rng.integers(8, 15) :] = mask
        feeds.append({"x": rng.standard_normal((1, 16, 32)).astype(np.float32), "m": m})
    return feeds


@pytest.mark.parametrize("mask", [-1e4, -65504.0])
def test_a_finite_mask_takes_nothing_from_the_scores(mask: float) -> None:
    before = quantize_checked(attention(), padded(mask), ALL, least=25.0)
    after = quantize_checked(attention(), padded(mask), WITH, least=before.worst + 1.0)
    assert "Softmax" in before.quantized.plan.quantized.values()
    assert any("mask values" in reason for reason in after.reasons.values())
    assert "MatMul" in after.quantized.plan.quantized.values()


@pytest.mark.parametrize("mask", [float(np.finfo(np.float32).min), 0.0, -3.0])
def test_what_is_no_finite_mask_is_left_to_the_engine(mask: float) -> None:
    before = quantize_checked(attention(), padded(mask), ALL, least=25.0)
    after = quantize_checked(attention(), padded(mask), WITH, least=25.0)
    assert after.quantized.plan.quantized == before.quantized.plan.quantized
    assert "no mask values" in after.notes


def statistics(*values: NDArray[Any] | list[float]) -> TensorStatistics:
    stats = TensorStatistics("t")
    stats.update(np.concatenate([np.asarray(v, np.float32).reshape(-1) for v in values]), 0)
    return stats


def test_a_mask_is_far_from_all_else_with_nothing_between() -> None:
    scores = np.random.default_rng(0).standard_normal(1000)
    assert mask_value(statistics(scores, scores[:100] - 1e4)) == pytest.approx(-1e4, rel=1e-3)
    assert mask_value(statistics(np.zeros(5), np.full(3, -100.0))) == -100.0
    assert mask_value(statistics(scores, [-10.0])) is None
    assert mask_value(statistics(scores, scores[:100] - 1e4, scores[:50] - 2e4)) == pytest.approx(-2e4, rel=1e-3)
    assert mask_value(statistics(scores, [-100.0])) == -100.0
    assert mask_value(statistics(10 * scores, [-100.0])) is None
    assert mask_value(statistics(scores, [-1e4, -1e3])) is None
    assert mask_value(statistics(np.full(4, -1e4))) is None
    assert mask_value(statistics(np.abs(scores), [1e4])) is None
    assert mask_value(TensorStatistics("empty")) is None


@pytest.mark.parametrize("per_channel", [True, False])
def test_dead_channels_get_a_sane_scale_and_spoil_no_other(per_channel: bool) -> None:
    w, b = normal(16, 16, 3, 3), normal(16, scale=0.1)
    w[3] = 0.0
    b[3] = 2.0
    model = build("(float[1, 16, 8, 8] x) => (float[1, 16, 6, 6] y) { a = Conv (x, w, b)\n y = Relu (a) }", w=w, b=b)
    options = Options(placement="all", per_channel=per_channel, reduce_range=False)
    q = onnxq.quantize(model, images(1, 16, 8, 8), options=options)
    scale = np.broadcast_to(q.qparams["w"].scale, (16,))
    live = [i for i in range(16) if i != 3]
    peaks = np.abs(w).max(axis=(1, 2, 3)) if per_channel else np.full(16, np.abs(w).max())
    np.testing.assert_allclose(scale[live], peaks[live] / 127, rtol=1e-6)
    assert 1e-6 < scale[3] < 1.0
    assert quantize_checked(model, images(1, 16, 8, 8), options).worst > 25.0
