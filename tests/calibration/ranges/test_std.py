from __future__ import annotations

import pytest

from onnxq.calibration.ranges import std
from tests.calibration.ranges.helpers import U8, stats_of, tensors


def test_mean_and_deviations() -> None:
    x = tensors()["gauss"].astype("float64")
    stats = stats_of(x)
    assert std.select(stats, U8) == pytest.approx((x.mean() - 3 * x.std(), x.mean() + 3 * x.std()), rel=1e-6)
    assert std.select(stats, U8, 0.5) == pytest.approx((x.mean() - 0.5 * x.std(), x.mean() + 0.5 * x.std()), rel=1e-6)
    assert std.select(stats, U8, 100.0) == (stats.min, stats.max)


def test_one_sign_keeps_its_near_end() -> None:
    x = tensors()["relu"].astype("float64")
    assert std.select(stats_of(x), U8) == pytest.approx((0.0, x.mean() + 3 * x.std()), rel=1e-6)
