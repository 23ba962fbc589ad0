"""Metrics: against numpy in float64, streaming equals all at once, and no trap of NaN, masks, zeros or shapes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxq.measuring.metrics import ErrorMeter, Errors, kept_signal, sqnr
from onnxq.measuring.outputs import worst_sqnr


def meter(*pairs: tuple[np.ndarray, np.ndarray]) -> ErrorMeter:
    made = ErrorMeter()
    for reference, result in pairs:
        made.update(reference, result)
    return made


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(-100, 100))
def test_against_numpy(seed: int, samples: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(samples):
        r = (rng.normal(size=(3, int(rng.integers(1, 50)))) + shift).astype(np.float32)
        pairs.append((r, r + rng.normal(size=r.shape).astype(np.float32) * np.float32(0.1)))
    got = meter(*pairs).result()
    r = np.concatenate([a.ravel() for a, _ in pairs]).astype(np.float64)
    g = np.concatenate([b.ravel() for _, b in pairs]).astype(np.float64)
    each = [10 * math.log10((a.astype(float) ** 2).sum() / ((a.astype(float) - b) ** 2).sum()) for a, b in pairs]
    assert got.sqnr == pytest.approx(10 * math.log10((r**2).sum() / ((r - g) ** 2).sum()), abs=1e-9)
    assert got.cosine == pytest.approx(r @ g / np.linalg.norm(r) / np.linalg.norm(g), abs=1e-12)
    assert got.sqnr_centred == pytest.approx(10 * math.log10(r.var() / (r - g).var()), abs=1e-6)
    assert got.max_error == np.abs(r - g).max()
    assert got.worst == pytest.approx(min(each), abs=1e-9)
    assert got.worst_sample == int(np.argmin(each))
    assert got.median == pytest.approx(float(np.median(each)), abs=1e-9)
    assert (got.samples, got.elements) == (samples, r.size)


def test_large_tensors_are_taken_in_pieces() -> None:
    rng = np.random.default_rng(0)
    r = rng.normal(5, 1, 200_001).astype(np.float32)
    g = r + np.float32(0.5)
    got = meter((r, g)).result()
    assert got.sqnr == pytest.approx(10 * math.log10((r.astype(float) ** 2).sum() / ((r.astype(float) - g) ** 2).sum()))
    assert got.sqnr_centred > 100  # nothing but a shift
    assert got.sqnr == pytest.approx(20.17, abs=0.05)


def test_a_constant_offset_of_the_signal_does_not_hide_the_error() -> None:
    rng = np.random.default_rng(1)
    r = 1000 + rng.normal(size=1000)
    got = meter((r, r + rng.normal(size=1000))).result()
    assert got.sqnr == pytest.approx(60, abs=1)
    assert got.sqnr_centred == pytest.approx(0, abs=1)


def test_exact_and_zero() -> None:
    x = np.ones(4, np.float32)
    assert sqnr(x, x) == math.inf
    assert sqnr(np.zeros(4), np.zeros(4)) == math.inf
    assert sqnr(np.zeros(4), x) == -math.inf
    zeros = np.zeros(4)
    for reference, result, cosine in ((zeros, zeros, 1.0), (zeros, x, 0.0), (x, zeros, 0.0)):
        meter = ErrorMeter()
        meter.update(reference, result)
        assert meter.result().cosine == cosine, "a result without any signal is not alike"


def test_the_worst_sample_is_seen_though_the_total_is_good() -> None:
    loud, quiet = np.full(4, 1000.0), np.full(4, 0.1)
    got = meter((loud, loud + 0.1), (quiet, quiet + 0.1), (loud, loud + 0.1)).result()
    assert got.sqnr > 70
    assert got.worst_sample == 1
    assert got.worst == pytest.approx(0, abs=1e-9)
    assert got.median > 70


def test_the_largest_number_and_the_largest_error_are_those_of_all_samples() -> None:
    pairs = [(np.array([1.0, -2.0]), np.array([1.5, -2.0])), (np.array([-9.0, 3.0]), np.array([-9.0, 0.0]))]
    got = meter(*pairs, (np.ones(2), np.ones(2) + 0.25)).result()
    assert (got.peak, got.max_error, got.max_error_sample) == (9.0, 3.0, 1)
    assert meter(*reversed(pairs)).result().max_error_sample == 0
    given = ErrorMeter()
    for sample, pair in zip((7, 12), pairs, strict=True):
        given.update(*pair, sample)
    assert (given.result().worst_sample, given.result().max_error_sample) == (12, 12), "by the index that was given"


def test_a_sample_of_zeros_is_held_against_the_mean_signal_of_all() -> None:
    """Rounding where the reference is zero throughout (-inf dB of its own signal) hides no sample that is poor."""
    loud, zeros = np.full(4, 2.0), np.zeros(4)
    got = meter((loud, loud + 0.02), (zeros, zeros + 0.02), (loud, loud + 0.2)).result()
    assert got.worst_sample == 2 and got.worst == pytest.approx(20.0)
    assert got.median == pytest.approx(10 * math.log10(16 * 2 / 3 / 0.0004 / 4))
    worse = meter((loud, loud + 0.02), (zeros, zeros + 2.0)).result()
    assert worse.worst_sample == 1 and worse.worst == pytest.approx(10 * math.log10(1 / 2)), "noise there still counts"
    assert meter((zeros, zeros)).result().worst == math.inf
    assert meter((zeros, zeros + 0.1)).result().worst == -math.inf, "no signal in any sample"


def test_masks_and_nan_of_the_reference_are_left_out() -> None:
    r = np.array([1.0, 2.0, np.nan, np.inf, -np.inf, -3.4e38], np.float32)
    g = np.array([1.0, 2.1, 0.0, 7.0, np.nan, -1e4], np.float32)
    got = meter((r, g)).result()
    assert (got.elements, got.skipped, got.broken) == (2, 4, 0)
    assert got.sqnr == pytest.approx(10 * math.log10(5 / 0.01), abs=1e-3)


def test_nan_of_the_result_only_is_a_failure() -> None:
    good = np.ones(3)
    got = meter((good, good + 0.01), (good, np.array([1, np.nan, 1]))).result()
    assert (got.sqnr, got.broken, got.worst_sample, got.max_error) == (-math.inf, 1, 1, math.inf)
    assert got.median == -math.inf
    assert got.elements == 6 and got.cosine == pytest.approx(1, abs=1e-4), "figures of the others, each element once"


def test_integers_are_compared_by_agreement() -> None:
    got = meter((np.array([1, 2, 3, 4]), np.array([1, 2, 0, 4]))).result()
    assert got.agreement == 0.75
    assert math.isnan(got.sqnr)
    words = meter((np.array(["a", "b"], object), np.array(["a", "c"], object))).result()
    assert words.agreement == 0.5


def test_other_shapes_and_nothing() -> None:
    got = meter((np.zeros(3), np.zeros(4)), (np.zeros(0), np.zeros(0))).result()
    assert (got.samples, got.reshaped, got.elements) == (2, 1, 0)
    assert math.isnan(got.sqnr)
    assert ErrorMeter().result().samples == 0


def test_a_sample_of_another_shape_counts_as_noise_in_the_score_alone() -> None:
    """Noise of 1 % is 40 dB; the other sample, as loud, counts with four times its signal."""
    good = np.full(10, 2.0)
    found = meter((good, good * 1.01), (good, good[:7])).result()
    assert found.sqnr == found.level == pytest.approx(40)
    assert found.score == pytest.approx(10 * math.log10(2 / (0.0001 + 4)))
    assert meter((good, good * 1.01)).result().score == pytest.approx(40)
    lost = meter((good, good[:7]), (good, good[:3])).result()
    assert math.isnan(lost.sqnr) and lost.score == lost.level == pytest.approx(10 * math.log10(1 / 4))
    assert kept_signal(lost) == lost.score
    assert meter((good[:0], good)).result().score == -math.inf
    assert meter((good[:0], good[:0])).result().score == math.inf
    assert math.isnan(meter((np.arange(3), np.arange(4))).result().score)


def test_json_is_strict() -> None:
    x = np.ones(2)
    for got in (meter((x, x)).result(), ErrorMeter().result(), meter((x, x * np.nan)).result()):
        json.loads(json.dumps(got.to_dict(), allow_nan=False))
    assert meter((x, x)).result().to_dict()["sqnr"] == "inf"


def test_the_worst_output_over_samples() -> None:
    """Noise of 1 % and 10 % of a constant: 40 and 20 dB; integers do not count."""
    exact = {"fine": np.full(4, 1.0), "coarse": np.full(4, 1.0), "label": np.array([3])}
    made = {"fine": np.full(4, 1.01), "coarse": np.full(4, 1.1), "label": np.array([5])}
    assert worst_sqnr(lambda feeds: made, [({}, exact), ({}, exact)]) == pytest.approx(20.0)
    assert worst_sqnr(lambda feeds: made, [({}, {"label": exact["label"]})]) == math.inf
    assert worst_sqnr(lambda feeds: {"fine": exact["fine"][:2]}, [({}, {"fine": exact["fine"]})]) < 0


@pytest.mark.parametrize(
    ("plain", "centred", "expected"),
    [(12.7, 3.9, 3.9), (20.0, 25.0, 20.0), (30.0, -30.0, 30.0), (30.0, -math.inf, 30.0)],
)
def test_what_varies_counts_beside_a_constant(plain: float, centred: float, expected: float) -> None:
    """A lost spectrum beside its offset, an error that is a shift, and outputs that are constant."""
    assert kept_signal(Errors(sqnr=plain, sqnr_centred=centred)) == expected


def metered(noises: list[float]) -> Errors:
    """Samples of one signal, and of errors of these sizes."""
    meter = ErrorMeter()
    for noise in noises:
        meter.update(np.ones(100), np.ones(100) + noise * np.tile([1, -1], 50))
    return meter.result()


def test_the_uncertainty_says_what_other_samples_would_give() -> None:
    rng = np.random.default_rng(0)
    found = [metered(list(rng.uniform(0.01, 0.03, size=8))) for _ in range(200)]
    spread = float(np.std([errors.sqnr for errors in found]))
    assert np.mean([errors.uncertainty for errors in found]) == pytest.approx(spread, rel=0.15)


def test_the_uncertainty_is_largest_where_one_sample_has_all_the_noise() -> None:
    assert metered([1e-6] * 7 + [0.1]).uncertainty == pytest.approx(10 / math.log(10), rel=0.01)
    assert metered([0.1] * 8).uncertainty == pytest.approx(0, abs=1e-6)
    assert math.isnan(metered([0.1]).uncertainty) and math.isnan(metered([0.0, 0.0]).uncertainty)
