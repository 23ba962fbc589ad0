from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.ranges import mse
from onnxq.spec import QuantSpec
from tests.calibration.ranges.helpers import S4, S8, U4, U8, stats_of, tensors, true_error

TENSORS = tensors()
SPECS = [U8, S8, U4, S4, QuantSpec(8, power_of_two=True), QuantSpec(8, False, False, power_of_two=True), QuantSpec(3)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", ["gauss", "relu", "laplace", "heavy", "shifted", "negative", "far", "uniform", "few"])
def test_near_the_best_clip_found_on_the_values(kind: str, spec: QuantSpec) -> None:
    """Against 60 common clips of both ends, judged on the values themselves: never 5 percent worse."""
    x = TENSORS[kind]
    lo, hi = mse.select(stats_of(x), spec)
    chosen = true_error(x, lo, hi, spec)
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    best = min(true_error(x, low * r, high * r, spec) for r in np.linspace(0.02, 1.0, 60))
    assert chosen <= best * 1.05 + 1e-15


@pytest.mark.parametrize("kind", ["gauss", "laplace", "heavy"])
def test_clipping_pays_at_few_bits(kind: str) -> None:
    x = TENSORS[kind]
    lo, hi = mse.select(stats_of(x), U4)
    assert true_error(x, lo, hi, U4) < 0.6 * true_error(x, float(x.min()), float(x.max()), U4)


def test_both_ends_are_searched_apart() -> None:
    """A side that is full to its end and one with a long tail: far better than any common clip of both."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4, 0, 20000), rng.exponential(1.5, 20000)]).astype(np.float32)
    lo, hi = mse.select(stats_of(x), U4)
    low, high = float(x.min()), float(x.max())
    common = min(true_error(x, low * r, high * r, U4) for r in np.linspace(0.02, 1.0, 60))
    assert lo == pytest.approx(-4.0, rel=0.1) and hi < 0.7 * high
    assert true_error(x, lo, hi, U4) < 0.9 * common


def test_sides() -> None:
    lo, hi = mse.select(stats_of(TENSORS["relu"]), U8)
    assert lo == 0.0
    lo, hi = mse.select(stats_of(TENSORS["negative"]), U8)
    assert hi == 0.0
    lo, hi = mse.select(stats_of(TENSORS["gauss"]), S8)
    assert lo == -hi
    assert mse.select(stats_of(np.zeros(9)), U8) == (0.0, 0.0)


def test_few_distinct_values_keep_the_full_range() -> None:
    x = np.repeat(np.array([0.0, 0.11, 0.5, 1.0], np.float32), 1000)
    assert mse.select(stats_of(x), U8) == (0.0, 1.0)


def test_outlier_is_weighed_by_its_error() -> None:
    x = TENSORS["outlier"]
    lo, hi = mse.select(stats_of(x), U8)
    assert true_error(x, lo, hi, U8) <= true_error(x, float(x.min()), float(x.max()), U8)


@pytest.mark.parametrize("spec", [U8, U4], ids=str)
def test_values_that_saturate_keep_their_end(spec: QuantSpec) -> None:
    """Sigmoid outputs crowd at 1 inside the last bin: no worse than the full range, which a clip at .985 would be."""
    rng = np.random.default_rng(0)
    x = np.append(1 / (1 + np.exp(-rng.normal(9.0, 1.0, 300))), rng.uniform(0.0, 0.9, 60)).astype(np.float32)
    lo, hi = mse.select(stats_of(x), spec)
    assert true_error(x, lo, hi, spec) <= 1.02 * true_error(x, 0.0, float(x.max()), spec)
