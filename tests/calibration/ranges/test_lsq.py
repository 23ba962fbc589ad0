from __future__ import annotations

import math

import numpy as np
import pytest

from onnxq.calibration.ranges import lsq
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec
from tests.calibration.ranges.helpers import S4, U4, stats_of, tensors


def test_scale_is_that_of_the_paper() -> None:
    x = tensors()["heavy"]
    mean = float(np.abs(x).astype(np.float64).mean())
    for spec, larger in ((S4, 7), (QuantSpec(3), 3), (U4, 7)):
        lo, hi = lsq.select(stats_of(x), spec)
        if spec.symmetric:
            assert float(from_range(lo, hi, spec).scale) == pytest.approx(2 * mean / math.sqrt(larger), rel=1e-5)
        else:
            assert (lo, hi) == pytest.approx((-2 * mean * math.sqrt(larger), 2 * mean * math.sqrt(larger)))
    relu = np.maximum(x, 0)
    mean = float(relu.astype(np.float64).mean())
    lo, hi = lsq.select(stats_of(relu), U4)
    assert lo == 0.0 and float(from_range(lo, hi, U4).scale) == pytest.approx(2 * mean / math.sqrt(15), rel=1e-5)
