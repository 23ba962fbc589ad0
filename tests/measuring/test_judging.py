"""Errors are held against an output's signal over all the data, not over the few samples at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample, Statistics, TensorStatistics
from onnxq.measuring.judging import judged, lifts, telling
from tests.models import f32


def known(**values: list[float]) -> Statistics:
    statistics = Statistics("", samples=4)
    for name, numbers in values.items():
        statistics.tensors[name] = TensorStatistics(name)
        statistics.tensors[name].update(f32(numbers), 0)
    return statistics


def test_an_output_that_is_dark_in_the_samples_counts_as_loud_as_it_is_in_the_data() -> None:
    here = [KeptSample(0, {}, {"dark": f32([0.01, -0.01]), "loud": f32([2.0, 2.0]), "none": f32([0.0])})]
    louder = lifts(here, known(dark=[1.0, 1.0], loud=[1.0], none=[1.0]))
    assert louder == {"dark": pytest.approx(40), "loud": 0.0, "none": math.inf}
    assert judged({"dark": -5.0, "loud": 30.0, "none": -math.inf, "other": 3.0}, louder) == {
        "dark": pytest.approx(35),
        "loud": 30.0,
        "none": math.inf,
        "other": 3.0,
    }


def test_what_was_not_observed_is_compared_with_all_samples_held_back() -> None:
    statistics = known()
    statistics.kept = [KeptSample(k, {}, {"y": f32([v]), "n": np.array([3])}) for k, v in enumerate((0.1, 0.995, 0.1))]
    louder = lifts(statistics.kept[:1], statistics)
    assert louder == {"y": pytest.approx(10 * math.log10((0.1**2 * 2 + 0.995**2) / 3 / 0.1**2), abs=1e-4)}


def test_masks_and_what_is_no_number_are_left_out() -> None:
    here = [KeptSample(0, {}, {"y": f32([0.1, np.inf, -1e35, np.nan])})]
    assert lifts(here, known(y=[0.1, 0.1]))["y"] == pytest.approx(0.0, abs=1e-5)


def sample(index: int, **outputs: list[float]) -> KeptSample:
    return KeptSample(index, {}, {name: f32(values) for name, values in outputs.items()})


def indices(samples: Sequence[KeptSample]) -> list[int]:
    return [kept.index for kept in samples]


def test_what_hurts_is_not_measured_on_samples_that_are_next_to_empty() -> None:
    """Of eight pictures three have an object: those drawn by lot for the rest of the numbers have none."""
    plain = [sample(k, y=[1.0, -1.0]) for k in range(8)]
    drawn = indices(spread(plain, 2))
    there = [k for k in range(8) if k not in drawn][:3]
    kept = [sample(k, y=[0.9 if k in there else 0.01, 0.0]) for k in range(8)]
    statistics = known(y=[0.9, 0.0, 0.9, 0.0, 0.9, 0.0, *[0.01, 0.0] * 5])
    assert indices(telling(plain, 2, known(y=[1.0, -1.0]))) == drawn
    assert indices(telling(kept, 2, statistics)) == there[:2]


def test_an_output_that_is_zero_throughout_chooses_no_samples() -> None:
    kept = [sample(k, y=[1.0, -1.0], none=[0.0]) for k in range(8)]
    chosen = telling(kept, 2, known(y=[1.0, -1.0], none=[0.0]))
    assert indices(chosen) == indices(spread(kept, 2))


def test_as_many_samples_as_are_wanted_are_all_taken() -> None:
    kept = [sample(k, y=[0.01]) for k in range(2)]
    assert indices(telling(kept, 2, known(y=[1.0]))) == [0, 1]
