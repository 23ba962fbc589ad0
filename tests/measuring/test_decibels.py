"""SQNR of powers, at the ends too."""

from __future__ import annotations

import math

import pytest

from onnxq.measuring.decibels import sqnr_of


@pytest.mark.parametrize(
    ("noise", "signal", "found"),
    [
        (0.01, 1.0, 20.0),
        (4.0, 2.0, -10 * math.log10(2)),
        (0.0, 1.0, math.inf),
        (0.0, 0.0, math.inf),
        (1.0, 0.0, -math.inf),
        (math.inf, 1.0, -math.inf),
        (math.nan, 1.0, -math.inf),
        (1e-200, 1e200, 4000.0),
    ],
)
def test_the_ratio_of_powers(noise: float, signal: float, found: float) -> None:
    assert sqnr_of(noise, signal) == pytest.approx(found, rel=1e-12)
