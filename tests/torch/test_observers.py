"""Ranges of observers equal their formulas, computed apart in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.errors import DataError, OptionError
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerChannel, QuantSpec, Scheme

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch.observers import OBSERVERS, observer_named
from tests.calibration.ranges.helpers import divergences

torch.set_num_threads(1)

ROWS = QuantSpec(8, granularity=PerChannel(0))
SIGNED = QuantSpec(4, narrow_range=True)
UNSIGNED = QuantSpec(4, signed=False, symmetric=False)
POWER = QuantSpec(6, power_of_two=True)
LOGARITHMIC = QuantSpec(scheme=Scheme.LOGARITHMIC)
Array = NDArray[Any]


def batches(*, positive: bool = False) -> list[Array]:
    rng = np.random.default_rng(0)
    found = [(rng.standard_normal((2, 1000)) * size + 0.3 * size).astype(np.float32) for size in (1.0, 3.0, 1.1)]
    return [np.abs(x) if positive else x for x in found]


def watched(name: str, spec: QuantSpec, data: list[Array]) -> tuple[Array, Array]:
    observer = observer_named(name)()
    for x in data:
        observer.watch(torch.from_numpy(x), spec)
    low, high = observer.range("x")
    assert low.shape == high.shape == ((2,) if isinstance(spec.granularity, PerChannel) else ())
    assert (low <= high).all()
    return low, high


def mean_of(values: list[Array], momentum: float = 0.9) -> Array:
    found = np.asarray(values[0], np.float64)
    for value in values[1:]:
        found = momentum * found + (1 - momentum) * value
    return found


def error(x: Array, low: Any, high: Any, spec: QuantSpec, power: float = 2.0) -> float:
    return float((np.abs(fake_quantize(x, from_range(low, high, spec)).astype(np.float64) - x) ** power).sum())


def test_minmax_and_ema() -> None:
    data = batches()
    low, high = ([f(b, axis=1) for b in data] for f in (np.min, np.max))
    np.testing.assert_allclose(watched("minmax", ROWS, data), (np.min(low, axis=0), np.max(high, axis=0)), rtol=1e-6)
    np.testing.assert_allclose(watched("ema", ROWS, data), (mean_of(low), mean_of(high)), rtol=1e-6)
    half = (mean_of(low, 0.5), mean_of(high, 0.5))
    np.testing.assert_allclose(watched("ema:momentum=0.5", ROWS, data), half, rtol=1e-6)


def test_quantile() -> None:
    data = batches()
    clip = [np.sort(np.abs(b), axis=1)[:, 989] for b in data]
    _, high = watched("quantile:quantile=0.99", ROWS, data)
    np.testing.assert_allclose(high, mean_of(clip), rtol=1e-6)
    low, high = watched("quantile:quantile=1", ROWS, data[:1])
    np.testing.assert_array_equal((low, high), (data[0].min(axis=1), data[0].max(axis=1)))


@pytest.mark.parametrize("power", [2.0, 2.4])
def test_mse_is_the_best_of_all_shrinkings(power: float) -> None:
    data, spec = batches(), QuantSpec(3)
    ends = []
    for x in data:
        shares = np.linspace(1.0, 0.2, 40)
        errors = [error(x, x.min() * k, x.max() * k, spec, power) for k in shares]
        best = shares[int(np.argmin(errors))]
        assert best < 0.95, "at 3 bits clipping pays"
        ends.append((x.min() * best, x.max() * best))
    low, high = ([e[k] for e in ends] for k in (0, 1))
    np.testing.assert_allclose(watched(f"mse:power={power}", spec, data), (min(low), max(high)), rtol=1e-6)
    np.testing.assert_allclose(watched(f"ema_mse:power={power}", spec, data), (mean_of(low), mean_of(high)), rtol=1e-6)


@pytest.mark.parametrize("positive", [False, True])
def test_clip_std_clips(positive: bool) -> None:
    data = batches(positive=positive)
    x = np.concatenate(data, axis=1).astype(np.float64)
    mean, deviation = x.mean(axis=1), x.std(axis=1)
    low = x.min(axis=1) if positive else np.maximum(mean - 2.6 * deviation, x.min(axis=1))
    high = np.minimum(mean + 2.6 * deviation, x.max(axis=1))
    found = watched("clip_std", ROWS, data)
    np.testing.assert_allclose(found, (low, high), rtol=1e-6)
    assert (found[1] < x.max(axis=1)).all()
    wide = watched("clip_std:deviations=100", ROWS, data)
    np.testing.assert_allclose(wide, (x.min(axis=1), x.max(axis=1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "positive", "larger"), [(SIGNED, False, 7), (UNSIGNED, False, 7), (UNSIGNED, True, 15), (ROWS, False, 127)]
)
def test_lsq_scale(spec: QuantSpec, positive: bool, larger: int) -> None:
    """Esser et al. 2020, section 2.1."""
    data = batches(positive=positive)
    x = np.concatenate(data, axis=1).astype(np.float64)
    axis = 1 if spec is ROWS else None
    scale = 2 * np.abs(x).mean(axis=axis) / np.sqrt(larger)
    qp = from_range(*watched("lsq", spec, data), spec)
    np.testing.assert_allclose(qp.scale, scale, rtol=1e-6)
    if not spec.symmetric:
        low = min(x.min(), 0.0)
        assert int(qp.zero_point) == np.clip(np.rint(spec.qmin - low / scale), spec.qmin, spec.qmax)


@pytest.mark.parametrize("spec", [SIGNED, ROWS], ids=str)
def test_lsq_plus_of_symmetric_grids(spec: QuantSpec) -> None:
    """Bhalgat et al. 2020, section 3.3: three standard deviations around the mean, over 2**(bits - 1)."""
    data = batches()
    x = np.concatenate(data, axis=1).astype(np.float64)
    axis = 1 if spec is ROWS else None
    mean, deviation = x.mean(axis=axis), x.std(axis=axis)
    scale = np.maximum(np.abs(mean - 3 * deviation), np.abs(mean + 3 * deviation)) / 2 ** (spec.bits - 1)
    np.testing.assert_allclose(from_range(*watched("lsq_plus", spec, data), spec).scale, scale, rtol=1e-6)


def test_lsq_plus_of_asymmetric_grids_has_the_least_error() -> None:
    x = np.append(np.random.default_rng(0).uniform(0, 8, 3000), [-9.0]).astype(np.float32)  # one end is an outlier
    low, high = (float(end) for end in watched("lsq_plus", UNSIGNED, [x]))
    found = error(x, low, high, UNSIGNED)
    shares = np.linspace(1.0, 0.2, 20)
    together = min(error(x, x.min() * k, x.max() * k, UNSIGNED) for k in shares)
    assert found < 0.95 * together, "each end for itself is better"
    every = min(error(x, x.min() * a, x.max() * b, UNSIGNED) for a in shares for b in shares)
    assert found <= 1.05 * every, "next to the best of all pairs"


def best_power(x: Array, spec: QuantSpec, count: int = 5) -> int:
    """The exponent of least squared error among those from the one that holds all values down."""
    largest = max(-float(x.min()) / -spec.qmin, float(x.max()) / spec.qmax, float(np.abs(x).max()) / spec.qmax)
    start = int(np.ceil(np.log2(largest)))
    errors = {}
    for exponent in range(start, start - count, -1):
        step = 2.0**exponent
        on_grid = np.clip(np.rint(x.astype(np.float64) / step), spec.qmin, spec.qmax) * step
        errors[exponent] = float(((on_grid - x) ** 2).sum())
    return min(errors, key=lambda e: (errors[e], -e))


def test_minmax_floor() -> None:
    data = [np.concatenate([x, np.full((2, 1), 40.0, np.float32)], axis=1) for x in batches()]
    exponents = [best_power(x, POWER) for x in data]
    plain = from_range(*watched("minmax", POWER, data), POWER)
    qp = from_range(*watched("minmax_floor", POWER, data), POWER)
    assert float(qp.scale) == 2.0 ** max(exponents) < float(plain.scale), "the finer grid clips 40"
    small = [data[0] * 2.0**-20]
    expected = 2.0 ** best_power(small[0], POWER)
    assert float(from_range(*watched("minmax_floor", POWER, small), POWER).scale) == expected, "at any size"


def test_pot_mode_takes_the_scale_that_most_batches_want() -> None:
    rng = np.random.default_rng(0)
    sizes = (1.0, 8.0, 1.0, 8.0, 1.0, 64.0)
    data = [(rng.standard_normal((2, 500)) * size).astype(np.float32) for size in sizes]
    exponents = [best_power(x, POWER) for x in data]
    assert len(set(exponents)) == 3
    qp = from_range(*watched("pot_mode", POWER, data), POWER)
    assert float(qp.scale) == 2.0 ** exponents[0]
    tie = from_range(*watched("pot_mode", POWER, data[:2]), POWER)
    assert float(tie.scale) == 2.0 ** exponents[1], "of several the largest"
    huge = [data[0] * np.float32(1e9)]
    assert float(from_range(*watched("pot_mode", POWER, huge), POWER).scale) == 2.0 ** best_power(huge[0], POWER)
    spec = QuantSpec(6, power_of_two=True, granularity=PerChannel(0))
    apart = [np.stack([x[0], x[1] * 64]) for x in data]
    want = [2.0 ** best_power(apart[0][k], POWER) for k in (0, 1)]
    np.testing.assert_array_equal(from_range(*watched("pot_mode", spec, apart), spec).scale, want)


def test_kl_over_all_batches() -> None:
    """Bins of 1/32 octave stand in for the values: the divergence is next to the least."""
    rng = np.random.default_rng(0)
    data = [np.stack([rng.standard_normal(20000), rng.standard_t(4, 20000)]).astype(np.float32) for _ in range(2)]
    low, high = watched("kl", ROWS, data)
    x = np.concatenate(data, axis=1)
    for channel in (0, 1):
        found = max(-float(low[channel]), float(high[channel]))
        every = divergences(x[channel], 128)
        near = min(every, key=lambda t: abs(t - found))
        assert every[near] <= 1.2 * min(every.values()), (found, near)


@pytest.mark.parametrize("name", OBSERVERS)
def test_every_observer_begins_anew_and_says_what_it_cannot(name: str) -> None:
    observer = OBSERVERS[name]()
    data = batches()
    observer.watch(torch.from_numpy(data[1] * 5), UNSIGNED)
    observer.forget()
    with pytest.raises(DataError, match=r"never reached it\. Give batches .* padding"):
        observer.range("x")
    observer.watch(torch.zeros(0, 3), UNSIGNED)
    observer.watch(torch.from_numpy(data[0]), UNSIGNED)
    np.testing.assert_array_equal(observer.range("x"), watched(name, UNSIGNED, data[:1]))
    with pytest.raises(DataError, match="NaN"):
        observer.watch(torch.tensor([[1.0, float("nan")]]), UNSIGNED)
    constant = OBSERVERS[name]()
    constant.watch(torch.zeros(2, 8), UNSIGNED)
    assert np.isfinite(from_range(*constant.range("x"), UNSIGNED).scale)


@pytest.mark.parametrize("name", [n for n, kind in OBSERVERS.items() if not kind.uniform_only])
def test_a_logarithmic_grid_is_not_shrunk_by_its_steps(name: str) -> None:
    x = batches()[0]
    low, high = watched(name, LOGARITHMIC, [x])
    if name in ("mse", "ema_mse", "minmax", "ema"):
        assert (float(low), float(high)) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("median", "there is no observer 'median'"),
        ("mse:bins=3", "no parameter 'bins'"),
        ("minmax:3", "no parameter '3'"),
        ("mse:steps=1.5", "not a whole number"),
        ("ema:momentum=x", "not a number"),
        ("ema:momentum=2", "not between 0 and 1"),
        ("quantile:quantile=-1", "not between 0 and 1"),
        ("pot_mode:steps=0", "not from 1 on"),
    ],
)
def test_names_and_parameters_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        observer_named(text)()


@pytest.mark.parametrize("kind", ["normal", "positive", "outlier", "sparse", "laid out"])
@pytest.mark.parametrize("spec", [UNSIGNED, SIGNED, QuantSpec(8, signed=False, symmetric=False)])
def test_of_many_values_a_lot_finds_a_range_as_good(kind: str, spec: QuantSpec) -> None:
    x = np.random.default_rng(1).standard_normal((64, 4, 32, 32)).astype(np.float32)
    if kind in ("positive", "sparse"):
        x = np.maximum(x, 0)
    if kind == "sparse":
        x *= np.random.default_rng(2).random(x.shape) < 0.04
    if kind == "outlier":
        x[3, 1, 2, 5] = 30.0
    if kind == "laid out":
        x[:, 1] *= 10
    low, high = watched("mse", spec, [x])
    shares = np.linspace(1.0, 0.2, 40)
    least = min(error(x, x.min() * k, x.max() * k, spec) for k in shares)
    assert error(x, low, high, spec) <= (1.1 if kind == "sparse" else 1.03) * least
    assert watched("mse", spec, [x]) == (low, high), "the same lot at each call"


def test_long_rows_of_channels_are_tried_one_by_one() -> None:
    x = np.random.default_rng(3).standard_normal((2, 20000)).astype(np.float32) * np.array([[1], [50]], np.float32)
    x[0, 7] = 40
    spec = QuantSpec(4, granularity=PerChannel(0))
    low, high = watched("mse", spec, [x])
    for row, a, b in zip(x, low, high, strict=True):
        least = min(error(row, row.min() * k, row.max() * k, QuantSpec(4)) for k in np.linspace(1.0, 0.2, 40))
        assert error(row, a, b, QuantSpec(4)) <= 1.03 * least
