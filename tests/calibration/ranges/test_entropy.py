from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.calibration.ranges import entropy
from onnxq.spec import QuantSpec
from tests.calibration.ranges.helpers import S8, U8, stats_of, tensors


def _threshold(x: NDArray[np.float32], levels: int) -> float:
    """The method written out plainly, on an exact linear histogram of the magnitudes."""
    magnitudes = np.abs(x[x != 0]).astype(np.float64)
    end = float(magnitudes.max())
    histogram, _ = np.histogram(magnitudes, bins=2048, range=(0, end))
    best, result = np.inf, end
    for kept in range(levels, 2049, 4):
        p = histogram[:kept].astype(np.float64)
        p[-1] += histogram[kept:].sum()
        q = np.zeros(kept)
        for level in range(levels):
            part = slice(level * kept // levels, (level + 1) * kept // levels)
            filled = histogram[part] > 0
            if filled.any():
                q[part] = np.where(filled, histogram[part].sum() / filled.sum(), 0.0)
        q[-1] = q[-1] or 1e-4
        p, q = p / p.sum(), q / histogram[:kept].sum()
        divergence = float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
        if divergence < best:
            best, result = divergence, kept * end / 2048
    return result


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
