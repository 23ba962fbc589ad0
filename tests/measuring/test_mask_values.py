"""Numbers that stand for "masked" in an output."""

from __future__ import annotations

import math

import numpy as np
import pytest

import onnxq
from onnxq.measuring.mask_values import fill_of
from onnxq.measuring.metrics import ErrorMeter
from tests.models import build, normal


def scores(fill: float = -1e4, masked: int = 8) -> np.ndarray:
    found = normal(20, 6, scale=3.0)
    found[:masked] = fill
    return found


@pytest.mark.parametrize("fill", [-1e4, 65504.0, -1e9])
def test_what_is_masked_in_both_is_not_compared(fill: float) -> None:
    exact, meter, bare = scores(fill), ErrorMeter(), ErrorMeter()
    got = exact + normal(20, 6, seed=1, scale=0.3)
    got[:8] = fill * 1.001
    meter.update(exact, got)
    bare.update(exact[8:], got[8:])
    found = meter.result()
    assert found.sqnr == bare.result().sqnr < 40 and found.skipped == 48 and found.max_error < 10


def test_scores_that_a_mask_was_added_to_are_masked() -> None:
    exact, meter, bare = scores(0.0), ErrorMeter(), ErrorMeter()
    exact[:8] = normal(8, 6, seed=2, scale=3.0) - 1e4
    got = exact + normal(20, 6, seed=1, scale=0.3)
    meter.update(exact, got)
    bare.update(exact[8:], got[8:])
    assert meter.result().sqnr == bare.result().sqnr < 40 and meter.result().skipped == 48


def test_a_mask_that_is_lost_counts() -> None:
    exact = scores()
    got = exact.copy()
    got[:8] = -12.0
    meter = ErrorMeter()
    meter.update(exact, got)
    assert meter.result().sqnr < 1 and meter.result().max_error > 9000


@pytest.mark.parametrize(
    "values",
    [
        scores(-1e4, 0),
        scores(-200.0),
        np.full(9, -1e4),
        np.append(scores(0.0), 1e5),
        np.append(scores(0.0), [1e3, 2e3]),
    ],
    ids=["none", "near", "alone", "once", "apart"],
)
def test_large_numbers_elsewhere_are_numbers(values: np.ndarray) -> None:
    assert fill_of(values.astype(np.float32)) is None


PUT = {
    "in place": "y = Where (padded, far, s)",
    "added": "c = Cast <to = 1> (padded)\n m = Mul (c, far)\n y = Add (s, m)",
}


@pytest.mark.parametrize(("how", "far"), [("in place", -1e4), ("in place", 1e4), ("added", -1e4)])
@pytest.mark.parametrize("backend", ["qnn", "snpe", "tensorrt", "vitis", "openvino"])
def test_scores_beside_a_mask_are_not_quantized_with_it(backend: str, how: str, far: float) -> None:
    """In one grid of 8 bits with 1e4 all scores would be 0, and the SQNR over both 60 dB."""
    model = build(
        f"""(float[1, 12, 16] x, bool[1, 12, 1] padded) => (float[1, 12, 8] y) {{
            h = MatMul (x, w)
            r = Relu (h)
            s = MatMul (r, v)
            {PUT[how]}
        }}""",
        w=normal(16, 32, scale=0.5),
        v=normal(32, 8, seed=1, scale=0.5),
        far=np.float32(far),
    )
    feeds = [
        {"x": normal(1, 12, 16, seed=k, scale=1.0), "padded": (np.arange(12) >= 6 + k % 6).reshape(1, 12, 1)}
        for k in range(24)
    ]
    made = onnxq.quantize(model, feeds, backend=backend)
    assert made.verification is not None and made.verification.worst is not None
    errors = made.verification.worst[1]
    assert 15 < errors.sqnr < 60 and math.isfinite(errors.sqnr) and errors.skipped
    assert not {"Where", "Add"} & set(made.plan.quantized.values())
