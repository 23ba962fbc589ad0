from __future__ import annotations

import pytest

from onnxq.calibration.ranges import ema
from tests.calibration.ranges.helpers import U8, stats_of


def test_moving_average_of_each_samples_extremes() -> None:
    stats = stats_of([-1.0, 4.0], [-2.0, 2.0], [-4.0, 8.0])
    low = 0.9 * (0.9 * -1.0 + 0.1 * -2.0) + 0.1 * -4.0
    high = 0.9 * (0.9 * 4.0 + 0.1 * 2.0) + 0.1 * 8.0
    assert ema.select(stats, U8) == pytest.approx((low, high))
    assert ema.select(stats_of([-4.0, 8.0]), U8, 0.9) == (-4.0, 8.0)
