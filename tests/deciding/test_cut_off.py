"""Ranges that cut off what rare samples hold are found in the statistics of all samples."""

from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.deciding.cut_off import cut_off
from onnxq.qparams import QParams
from onnxq.ranged import from_range
from tests.models import build, normal


def result(loud: int, spike: float = 0.0) -> tuple[onnxq.Quantized, onnxq.Statistics]:
    model = build(
        "(float[1, 3, 12, 12] x) => (float[1, 8, 12, 12] y) { [c] y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
        w=normal(8, 3, 3, 3),
    )
    x = np.random.default_rng(0).standard_normal((200, 1, 3, 12, 12)).astype(np.float32)
    x[:loud] *= 6
    if spike:
        x[0, 0, 1, 5, 5] = spike
    statistics = onnxq.calibrate(model, [{"x": sample} for sample in x])
    return onnxq.quantize(model, statistics=statistics, options=Options(placement="all")), statistics


def with_range(made: onnxq.Quantized, end: float) -> dict[str, QParams]:
    """The input between plus and minus ``end``."""
    site = next(site for site in made.plan.sites if site.tensor == "x")
    return {**made.qparams, site.name: from_range(-end, end, site.spec)}


def test_rare_loud_samples_are_not_to_be_cut_off() -> None:
    made, statistics = result(loud=2)
    assert cut_off(made.plan, with_range(made, 24.0), with_range(made, 20.0), statistics) is None
    found = cut_off(made.plan, with_range(made, 24.0), with_range(made, 4.5), statistics)
    assert found is not None and found[0] == "x" and found[1] > 10


@pytest.mark.parametrize("spike", [0.0, 150.0])
def test_single_values_far_out_may_be_cut_off(spike: float) -> None:
    made, statistics = result(loud=0, spike=spike)
    assert cut_off(made.plan, with_range(made, 150.0), with_range(made, 4.5), statistics) is None


def test_equal_ranges_lose_nothing() -> None:
    made, statistics = result(loud=2)
    assert cut_off(made.plan, made.qparams, made.qparams, statistics) is None
