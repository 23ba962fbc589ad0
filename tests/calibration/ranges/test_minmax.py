from __future__ import annotations

import numpy as np

from onnxq.calibration.ranges import minmax
from tests.calibration.ranges.helpers import S8, U8, stats_of


def test_exact_over_all_samples() -> None:
    stats = stats_of([1.1, -0.3], [np.nan, 2.7], [np.inf, -3.4e38])
    for spec in (U8, S8):
        assert minmax.select(stats, spec) == (float(np.float32(-0.3)), float(np.float32(2.7)))
