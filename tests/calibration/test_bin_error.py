from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.bin_error import Bins
from onnxq.calibration.statistics import TensorStatistics
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec, Scheme

SPECS = [QuantSpec(8, False, False), QuantSpec(8), QuantSpec(4, False, False), QuantSpec(3), QuantSpec(16)]


def _bins(x: np.ndarray) -> Bins:
    stats = TensorStatistics("t")
    stats.update(x.astype(np.float32), 0)
    return Bins(stats)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_exact_is_the_error_of_values_spread_inside_the_bins(spec: QuantSpec) -> None:
    """Against 20,001 points put evenly into each bin, in float64; to 0.2 percent."""
    x = np.array([-3.0, -2.95, -0.3, 0.0, 0.0, 0.7, 1.9, 5.0], np.float32)
    bins = _bins(x)
    for lo, hi in ((-3.0, 5.0), (-1.0, 2.0), (-0.2, 6.0), (-3.0, 0.5)):
        qp = from_range(np.array([lo]), np.array([hi]), spec)
        scale, zero = float(qp.scale[0]), int(qp.zero_point[0])
        total = 0.0
        for a, b, count in zip(bins.lower, bins.upper, bins.counts, strict=True):
            points = np.linspace(a, b, 20001)
            grid = np.clip(np.rint(points / scale), spec.qmin - zero, spec.qmax - zero) * scale
            total += count * float(((points - grid) ** 2).mean())
        assert bins.exact(qp)[0] == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("spec", SPECS[:4], ids=str)
@pytest.mark.parametrize("kind", ["gauss", "relu", "laplace"])
def test_estimates_are_near_the_true_error(spec: QuantSpec, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = {"gauss": rng.standard_normal(50000), "laplace": rng.laplace(size=50000)}.get(
        kind, np.maximum(rng.standard_normal(50000), 0)
    )
    bins = _bins(x)
    for share in (1.0, 0.6, 0.25):
        qp = from_range(np.array([x.min() * share]), np.array([x.max() * share]), spec)
        scale, zero = float(qp.scale[0]), int(qp.zero_point[0])
        grid = np.clip(np.rint(x / scale), spec.qmin - zero, spec.qmax - zero) * scale
        true = float(((x - grid) ** 2).sum())
        assert bins.exact(qp)[0] == pytest.approx(true, rel=0.02)
        assert bins.quick(qp)[0] == pytest.approx(true, rel=0.1)


def test_candidates_are_independent() -> None:
    bins = _bins(np.random.default_rng(0).standard_normal(1000))
    lo, hi = -np.array([1.0, 2.0, 3.0]), np.array([3.0, 0.5, 1.0])
    for estimate in (bins.exact, bins.quick):
        together = estimate(from_range(lo, hi, SPECS[0]))
        alone = [estimate(from_range(lo[i : i + 1], hi[i : i + 1], SPECS[0]))[0] for i in range(3)]
        assert np.allclose(together, alone, rtol=1e-9)


def test_zeros_and_points_make_no_error() -> None:
    bins = _bins(np.array([0.0] * 9 + [6.0]))
    qp = from_range(np.array([0.0]), np.array([6.0]), SPECS[0])
    assert bins.exact(qp)[0] < 1e-12


def test_zeros_make_no_error_on_a_logarithmic_grid() -> None:
    bins = _bins(np.array([0.0, 0.0, 0.5, -0.25, 3.0], np.float32))
    some = _bins(np.array([0.5, -0.25, 3.0], np.float32))
    qp = from_range(np.array([-3.0]), np.array([3.0]), QuantSpec(scheme=Scheme.LOGARITHMIC))
    assert (bins.lower == bins.upper).any(), "a bin of nothing but zeros"
    assert bins.exact(qp)[0] == pytest.approx(some.exact(qp)[0]) and np.isfinite(bins.exact(qp)[0])
