from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import onnxq
from onnxq.calibration.statistics import EMA_MOMENTUM, KeptSample, Statistics, TensorStatistics
from onnxq.errors import StatisticsError
from tests.models import feeds_for, normal
from tests.targets import residual

SAMPLES = st.lists(
    hnp.arrays(
        np.float32, st.integers(0, 20), elements=st.floats(-1e4, 1e4, width=32) | st.sampled_from([np.nan, np.inf])
    ),
    max_size=8,
)


def _of(samples: list[Any], name: str = "t") -> TensorStatistics:
    stats = TensorStatistics(name)
    for index, sample in enumerate(samples):
        stats.update(np.asarray(sample, np.float32), index)
    return stats


@given(SAMPLES)
def test_against_numpy(samples: list[Any]) -> None:
    stats = _of(samples)
    joined = np.concatenate([np.zeros(0, np.float32), *samples])
    kept = joined[np.isfinite(joined)].astype(np.float64)
    assert stats.elements == joined.size and stats.count == kept.size == stats.counts.sum()
    assert stats.nan == np.isnan(joined).sum() and stats.inf == np.isinf(joined).sum()
    assert stats.samples == sum(1 for sample in samples if sample.size)
    if kept.size:
        assert (stats.min, stats.max) == (kept.min(), kept.max())
        assert stats.mean == pytest.approx(kept.mean(), rel=1e-9, abs=1e-9)
        assert stats.std == pytest.approx(kept.std(), rel=1e-3, abs=1e-2)
        assert stats.sum_abs == pytest.approx(np.abs(kept).sum(), rel=1e-12, abs=1e-12)
    average: list[float] = []
    for sample in samples:
        finite = sample[np.isfinite(sample)].astype(np.float64)
        if finite.size:
            low = float(finite.min())
            average.append(EMA_MOMENTUM * average[-1] + (1 - EMA_MOMENTUM) * low if average else low)
    assert stats.ema_min == pytest.approx(average[-1] if average else 0.0, rel=1e-9, abs=1e-9)


@given(SAMPLES, SAMPLES)
def test_merging_is_concatenation(first: list[Any], second: list[Any]) -> None:
    whole, merged = _of(first + second), _of(first)
    merged.merge(_of(second), len(first))
    for field in fields(TensorStatistics):
        a, b = getattr(merged, field.name), getattr(whole, field.name)
        if isinstance(a, float):
            assert a == pytest.approx(b, rel=1e-9, abs=1e-9), field.name
        else:
            assert np.array_equal(a, b), field.name
    assert (merged.min, merged.max) == (whole.min, whole.max)


def test_edges_hold_the_values() -> None:
    x = np.concatenate([np.random.default_rng(0).standard_normal(5000), [0.0] * 100]).astype(np.float32)
    stats = _of([x])
    lower, upper, counts = stats.edges()
    assert lower[0] == x.min() and upper[-1] == x.max()
    assert (lower <= upper).all() and (np.diff(lower) > 0).all() and (upper[:-1] <= lower[1:]).all()
    inside = [np.count_nonzero((x >= a) & (x <= b)) for a, b in zip(lower, upper, strict=True)]
    assert (np.array(inside) >= counts).all() and counts.sum() == len(x)
    centers, _ = stats.bins()
    assert (np.diff(centers) > 0).all() and counts[centers == 0.0] == [100]


def test_bins_of_few_values() -> None:
    centers, counts = _of([[6.0, 6.0, -1.0, 0.0]]).bins()
    assert centers[-1] == 6.0 and centers[1] == 0.0 and counts.tolist() == [1, 1, 2]
    assert centers[0] == pytest.approx(-1.0)
    nothing: list[list[Any]] = [[], [[]], [[np.nan]]]
    for empty in nothing:
        assert _of(empty).bins()[1].size == 0
        assert (_of(empty).mean, _of(empty).std) == (0.0, 0.0)


def test_wide_then_narrow_and_reversed_give_the_same_histogram() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = rng.standard_normal(1000) * 100, rng.standard_normal(1000)
    a, b = _of([wide, narrow]), _of([narrow, wide])
    assert np.array_equal(a.counts, b.counts) and (a.min, a.max) == (b.min, b.max)


def test_first_bad_sample() -> None:
    stats = _of([[1.0], [np.nan, 2.0], [np.nan, np.inf]])
    assert (stats.nan, stats.nan_sample, stats.inf, stats.inf_sample) == (2, 1, 1, 2)
    assert stats.averaged == 2 and stats.samples == 3


def test_warnings() -> None:
    statistics = Statistics("d", samples=1)
    for name, samples in (
        ("good", [[1.0]]),
        ("bad", [[1.0], [np.nan]]),
        ("worse", [[np.nan, np.inf]]),
        ("zero", [[0.0, -0.0]]),
        ("mask", [[0.0, -np.inf]]),
        ("other mask", [[0.0], [np.finfo(np.float32).min, 0.0]]),
    ):
        statistics.tensors[name] = _of(samples, name)
    text = "\n".join(statistics.warnings())
    assert "the ranges come from 1 sample only" in text
    assert "NaN in tensor 'bad' and 1 more tensor, first in sample 1 (1 of 2 values)" in text
    assert "infinite values in tensor 'worse' and 1 more tensor, first in sample 0" in text
    assert text.endswith("always zero on this data: 'zero'")  # no mask: what it masks with is no zero
    assert Statistics("d", samples=10, tensors={"good": _of([[1.0]])}).warnings() == []


@pytest.mark.parametrize(
    ("samples", "rows", "said"), [(9, (1, 1), True), (2, (8, 8), False), (2, (4, 4), True), (2, (8, 1), True)]
)
def test_few_samples_are_said_and_rows_of_a_batch_count(samples: int, rows: tuple[int, int], said: bool) -> None:
    feeds = {name: np.ones((n, 3), np.float32) for name, n in zip("xh", rows, strict=True)}
    statistics = Statistics("d", samples=samples, kept=[KeptSample(0, feeds, {})])
    assert bool(statistics.warnings()) is said
    assert not said or statistics.warnings()[0].startswith(f"the ranges come from {samples} samples only")


def test_only_tensors_that_matter_and_the_ends_of_the_model_are_warned_of() -> None:
    """A mask of infinities that stays float has no range."""
    statistics = Statistics("d", samples=10)
    for name in ("mask", "y"):
        statistics.tensors[name] = _of([[1.0], [np.inf]], name)
    assert statistics.warnings({"mask"})[0].startswith("infinite values in tensor 'mask', first")
    assert statistics.warnings({"other"}) == []
    statistics.kept = [KeptSample(0, {}, {"y": np.ones(1, np.float32)})]
    assert statistics.warnings({"other"})[0].startswith("infinite values in tensor 'y', first")


def test_merge_of_models() -> None:
    def kept(index: int) -> KeptSample:
        return KeptSample(index, {"x": np.ones(2, np.float32)}, {})

    a = Statistics("d", 10, {"t": _of([[1.0]])}, {"u": "no", "v": "no"}, [kept(0), kept(8)])
    b = Statistics("d", 6, {"t": _of([[5.0, np.nan]]), "v": _of([[2.0]])}, {"u": "no"}, [kept(0), kept(4)])
    a.merge(b)
    assert a.samples == 16 and a.tensors["t"].max == 5.0 and a.tensors["t"].nan_sample == 10
    assert a.tensors["v"].count == 1 and a.unobservable == {"u": "no"}
    assert [k.index for k in a.kept] == [8, 10]
    assert a.kept[0].nbytes == 8
    with pytest.raises(StatisticsError, match="two models"):
        a.merge(Statistics("other"))


@pytest.mark.parametrize("rhythm", [2, 4, 8])
def test_samples_of_every_kind_stay_held_back_after_a_merge(rhythm: int) -> None:
    one, other = (Statistics("d", 16, kept=[KeptSample(k, {}, {}) for k in range(16)]) for _ in range(2))
    one.merge(other)
    assert len(one.kept) == 16 and one.samples == 32
    assert {k.index % rhythm for k in one.kept} == set(range(rhythm)), "kinds of samples that come in turn"


def test_statistics_are_short_in_words_and_can_be_pickled_and_copied() -> None:
    made = onnxq.calibrate(residual(), feeds_for(residual()))
    text = repr(made)
    assert text.startswith(f"<Statistics of {made.samples} samples, {len(made.kept)} kept; ") and len(text) < 200
    before = onnxq.quantize(residual(), statistics=made)  # which fills what is remembered of models
    again = pickle.loads(pickle.dumps(made))
    for other in (again, copy.deepcopy(made)):
        after = onnxq.quantize(residual(), statistics=other)
        assert {n: (q.scale.tolist(), q.zero_point.tolist()) for n, q in after.qparams.items()} == {
            n: (q.scale.tolist(), q.zero_point.tolist()) for n, q in before.qparams.items()
        }


def test_plans_and_backends_are_short_in_words() -> None:
    plan = onnxq.plan(residual(), options=onnxq.Options(placement="all"))
    assert repr(plan).startswith(f"<Plan for onnxruntime: {plan.done} of {plan.total} nodes in integers; ")
    for backend in onnxq.backends():
        assert repr(backend).startswith(f"<Backend {backend.name}: ") and len(repr(backend)) < 300


def test_clipped_statistics_are_those_of_clipped_values() -> None:
    values = normal(4, 500, scale=10.0)
    seen, wanted = TensorStatistics("t"), TensorStatistics("t")
    for sample, row in enumerate(values):
        seen.update(row, sample)
        wanted.update(np.clip(row, -8, 5), sample)
    got = seen.clipped(-8.0, 5.0)
    assert (got.min, got.max, got.count, got.samples) == (wanted.min, wanted.max, wanted.count, wanted.samples)
    np.testing.assert_array_equal(got.counts, wanted.counts)
    for name in ("sum", "sum_abs", "sum_squares", "ema_min", "ema_max"):
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), rel=0.02), name
    assert seen.clipped(-1e9, 1e9) is seen
