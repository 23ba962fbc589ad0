from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.ranges import percentile
from tests.calibration.ranges.helpers import S8, U8, stats_of, tensors


@pytest.mark.parametrize("p", [75.0, 95.0, 99.0, 99.9])
def test_against_numpy(p: float) -> None:
    """Within one bin, 1/32 octave: 3.2 percent of the value."""
    x = tensors()
    cut = 100 - p
    for name in ("gauss", "laplace", "heavy", "shifted"):
        lo, hi = percentile.select(stats_of(x[name]), U8, p)
        assert (lo, hi) == pytest.approx(tuple(np.percentile(x[name], [cut / 2, 100 - cut / 2])), rel=0.032)
        lo, hi = percentile.select(stats_of(x[name]), S8, p)
        assert lo == -hi and hi == pytest.approx(np.percentile(np.abs(x[name]), p), rel=0.032)
    lo, hi = percentile.select(stats_of(x["relu"]), U8, p)
    assert lo == 0.0 and hi == pytest.approx(np.percentile(x["relu"], p), rel=0.032)
    lo, hi = percentile.select(stats_of(x["negative"]), U8, p)
    assert hi == x["negative"].max() and lo == pytest.approx(np.percentile(x["negative"], cut), rel=0.032)


def test_100_percent_is_everything() -> None:
    for x in tensors().values():
        assert percentile.select(stats_of(x), U8, 100.0) == pytest.approx((x.min(), x.max()), rel=1e-6)


def test_default_cuts_an_outlier() -> None:
    x = tensors()["outlier"]
    assert percentile.select(stats_of(x), U8)[1] < 6.0
