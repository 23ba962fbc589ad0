"""What every range method must satisfy, and the parsing of its name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from onnxq import plugins
from onnxq.calibration.ranges import check_range, select_range
from onnxq.errors import OptionError
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec
from tests.calibration.ranges.helpers import S4, S8, U4, U8, stats_of, tensors

TENSORS = tensors()
SPECS = [U8, S8, U4, S4, QuantSpec(16, False, False), QuantSpec(8, power_of_two=True), QuantSpec(2, False, False)]


@pytest.mark.parametrize(
    "name", ["minmax", "ema", "percentile", "mse", "entropy", "std", "lsq", "percentile:90", "std:2"]
)
@pytest.mark.parametrize("kind", TENSORS)
def test_a_range_is_sound_and_pure(name: str, kind: str) -> None:
    x = TENSORS[kind]
    stats = stats_of(x)
    counts = stats.counts.copy()
    for spec in SPECS:
        spec = replace(spec, range=name)
        lo, hi = select_range(stats, spec)
        assert math.isfinite(lo) and math.isfinite(hi) and lo <= hi
        limit = float(np.abs(x).max())
        assert -limit <= lo and hi <= limit
        if not spec.symmetric:
            assert min(x.min(), 0.0) <= lo and hi <= max(x.max(), 0.0)
        assert (lo, hi) == select_range(stats, spec)
        assert np.isfinite(from_range(lo, hi, spec).scale)
    assert np.array_equal(stats.counts, counts)


def test_no_values() -> None:
    assert select_range(stats_of(), U8) == (0.0, 0.0)
    assert select_range(stats_of([np.nan]), S8) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("nothing", "no range method named 'nothing'"),
        ("percentile:", "is not a number"),
        ("percentile:x", "is not a number"),
        ("percentile:nan", "is not a number"),
        ("percentile:101", "above 50 and up to 100"),
        ("percentile:50", "above 50 and up to 100"),
        ("std:0", "above 0"),
        ("std:-1", "above 0"),
        ("ema:0.5", "0.9 only"),
        ("minmax:1", "no parameter"),
        ("mse:1", "no parameter"),
        ("entropy:1", "no parameter"),
        ("lsq:1", "no parameter"),
    ],
)
def test_wrong_options(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        check_range(text)
    with pytest.raises(OptionError, match=match):
        select_range(stats_of([1.0, 2.0]), replace(U8, range=text))


def test_right_options() -> None:
    for name in plugins.names("onnxq.ranges"):
        check_range(name)
    for text in ("percentile:99.9", "percentile:100", "std:2.5", "ema:0.9"):
        check_range(text)
