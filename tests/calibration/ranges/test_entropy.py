from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.calibration.ranges import entropy
from onnxq.spec import QuantSpec
from tests.calibration.ranges.helpers import S8, U8, divergences, stats_of, tensors


def _threshold(x: NDArray[np.float32], levels: int) -> float:
    every = divergences(x, levels)
    return min(every, key=every.__getitem__)


@pytest.mark.parametrize("kind", ["gauss", "relu", "laplace", "heavy", "uniform"])
def test_against_the_plain_method(kind: str) -> None:
    """Bins of 1/32 octave stand in for the values: the threshold agrees to 15 percent."""
    x = tensors()[kind]
    lo, hi = entropy.select(stats_of(x), S8)
    assert max(-lo, hi) == pytest.approx(_threshold(x, 128), rel=0.15)


def test_outliers_are_clipped_hard_and_zeros_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    x = np.append(rng.standard_normal(40000), 100.0).astype(np.float32)
    lo, hi = entropy.select(stats_of(x), S8)
    assert hi < 10.0
    assert entropy.select(stats_of(np.append(x, np.zeros(100000))), S8) == (lo, hi)


def test_one_sided_grids_have_more_levels() -> None:
    x = np.maximum(tensors()["heavy"], 0)
    lo, hi = entropy.select(stats_of(x), U8)
    assert lo == 0.0 and hi == pytest.approx(_threshold(x, 256), rel=0.15)


def test_many_bits_take_everything() -> None:
    x = tensors()["heavy"]
    assert entropy.select(stats_of(x), QuantSpec(16)) == (x.min(), x.max())
