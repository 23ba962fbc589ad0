"""Statistics over all data of tensors that were changed after calibration, of which only kept samples are run again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.calibration.bin_error import Bins
from onnxq.calibration.moved import over_all
from onnxq.calibration.ranges import select_range
from onnxq.calibration.tensor_statistics import TensorStatistics
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec
from tests.models import build, normal

Array = NDArray[np.float32]

CHANNELS = 6
SPEC = QuantSpec(signed=False, symmetric=False)


def of(samples: Array) -> TensorStatistics:
    stats = TensorStatistics("t")
    for index, sample in enumerate(samples):
        stats.update(sample, index)
    return stats


def loud(count: int, seed: int = 0, *, relu: bool = False) -> Array:
    """Samples of very different loudness with channels of very different size, (count, C, 40)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, CHANNELS, 40)) * np.geomspace(1, 30, CHANNELS)[:, None]
    x *= np.exp(rng.normal(0, 0.7, count))[:, None, None]
    return (np.maximum(x, 0) if relu else x).astype(np.float32)


@pytest.mark.parametrize("relu", [False, True])
def test_channels_scaled_alike_have_the_scaled_statistics(relu: bool) -> None:
    x = loud(256, relu=relu)
    every, kept = of(x), x[::16]
    found, true = over_all(of(kept * 0.25), of(kept), every), of(x * np.float32(0.25))
    assert (found.count, found.samples) == (true.count, true.samples)
    assert found.counts.sum() == found.count
    np.testing.assert_allclose(found.counts.cumsum(), true.counts.cumsum(), atol=2)
    for name in ("min", "max", "sum_abs", "sum_squares", "ema_min", "ema_max"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.01), name


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("method", ["minmax", "mse", "percentile:99.9", "entropy", "std", "ema"])
def test_channels_scaled_each_by_its_own_have_about_the_statistics_of_all_data(method: str, relu: bool) -> None:
    """The error on all data that a range makes: of kept samples alone it is many times as large as need be."""
    spec = QuantSpec(signed=False, symmetric=False, range=method)
    x = loud(512, relu=relu)
    y = (x / np.geomspace(1, 30, CHANNELS)[::-1, None] ** 0.5).astype(np.float32)
    quiet = np.argsort(np.abs(x).max(axis=(1, 2)))[:400:10]
    found, true = over_all(of(y[quiet]), of(x[quiet]), of(x)), of(y)
    error = []
    for stats in (found, true, of(y[quiet])):
        low, high = select_range(stats, spec)
        error.append(float(Bins(true).exact(from_range(np.array([low]), np.array([high]), spec))[0]))
    assert error[0] < 2 * error[1]
    if method in ("minmax", "mse"):
        assert error[2] > 10 * error[1]


def test_all_samples_kept_change_nothing() -> None:
    x = loud(64)
    found, true = over_all(of(x * np.float32(0.3)), of(x), of(x)), of(x * np.float32(0.3))
    assert (found.min, found.max, found.count) == (true.min, true.max, true.count)
    np.testing.assert_allclose(found.counts.cumsum(), true.counts.cumsum(), atol=2)


def test_a_sign_that_no_kept_sample_shows_is_taken_over() -> None:
    x = np.abs(loud(64))
    x[7] *= -1
    kept = x[16::16]
    found = over_all(of(kept * 2), of(kept), of(x))
    assert found.min == pytest.approx(2 * x.min(), rel=1e-6)
    assert found.counts[8193:].sum() == x[7].size


def test_without_values_the_kept_samples_tell() -> None:
    kept = of(loud(2))
    assert over_all(kept, kept, TensorStatistics("t")) is kept
    zero = of(np.zeros((4, 3), np.float32))
    found = over_all(zero, zero, zero)
    assert (found.min, found.max, found.count) == (0.0, 0.0, 12)


def scaled_channels() -> Any:
    """Channels between two convolutions differ by a factor of 40."""
    rng = np.random.default_rng(5)
    factors = np.exp(rng.uniform(-1.8, 1.8, 12)).astype(np.float32)
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 6] y) {
            [c1] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b)
            r = Relu (a)
            [c2] c = Conv <pads = [1, 1, 1, 1]> (r, w2, b)
            s = Relu (c)
            g = GlobalAveragePool (s)
            f = Flatten (g)
            [fc] y = Gemm (f, w3)
        }""",
        w1=normal(12, 3, 3, 3) * factors[:, None, None, None],
        w2=normal(12, 12, 3, 3, seed=1) / factors[:, None, None],
        b=0.1 * normal(12, seed=2),
        w3=normal(12, 6, seed=3),
    )


def products() -> Any:
    """A few channels between two matrix products are far louder than the others."""
    first, second = normal(32, 32), normal(32, 16, seed=1)
    first[:, :3] *= 60
    second[:3] /= 8
    return build(
        """(float[1, 16, 32] x) => (float[1, 16, 16] y) {
            a = MatMul (x, w0)
            r = Relu (a)
            y = MatMul (r, w1)
        }""",
        w0=first,
        w1=second,
    )


@pytest.mark.parametrize(("algorithm", "shape"), [("equalize", (1, 3, 8, 8)), ("smoothquant", (1, 16, 32))])
def test_ranges_of_what_was_rescaled_hold_all_the_data(algorithm: str, shape: tuple[int, ...]) -> None:
    """Samples differ in loudness, and few are kept: the result on all of them is as if all were kept."""
    model = scaled_channels() if algorithm == "equalize" else products()
    rng = np.random.default_rng(5)
    data = [{"x": (rng.standard_normal(shape) * np.exp(rng.normal(0, 0.7))).astype(np.float32)} for _ in range(256)]
    sqnr = []
    for keep in (32, 256):
        options = Options(
            placement="all",
            range="minmax",
            per_channel=algorithm != "equalize",
            keep=keep,
            algorithms=(algorithm, "bias_correction"),
        )
        made = onnxq.quantize(model, data, options=options)
        assert not any(note.startswith(f"{algorithm}: 0 ") for note in made.notes), made.notes
        sqnr.append(onnxq.compare(model, made, data, tensors=False).outputs["y"].sqnr)
    assert sqnr[0] > sqnr[1] - 3
