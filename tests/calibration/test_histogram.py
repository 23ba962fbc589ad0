from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxq.calibration import histogram
from onnxq.calibration.histogram import KEYS, accumulate, key_edges

needs_kernel = pytest.mark.skipif(histogram.KERNEL != "c", reason="the C kernel is not built")
SIZES = [0, 1, 15, 16, 17, 2047, 2048, 2049, 4096, 8191, 8192, 8193, 65535, 65536, 65537, 150001]


def _both(x: Any) -> tuple[histogram.Tally, np.ndarray[Any, Any]]:
    """Result of the implementation in use, after checking that NumPy's is equal bit for bit."""
    array = np.asarray(x, np.float32)
    counts, other = np.zeros(KEYS, np.int64), np.zeros(KEYS, np.int64)
    tally = accumulate(array, counts)
    expected = histogram._accumulate_numpy(np.ascontiguousarray(array).reshape(-1), other)
    assert [float(v).hex() for v in astuple(tally)] == [float(v).hex() for v in astuple(expected)]
    assert np.array_equal(counts, other)
    return tally, counts


@pytest.mark.parametrize("size", SIZES)
def test_gaussian_and_relu(size: int) -> None:
    rng = np.random.default_rng(size)
    for x in (rng.standard_normal(size), np.maximum(rng.standard_normal(size), 0), np.zeros(size)):
        x = x.astype(np.float32)
        tally, counts = _both(x)
        assert counts.sum() == tally.count == size
        if size:
            exact = x.astype(np.float64)
            assert (tally.min, tally.max) == (x.min(), x.max())
            assert tally.sum == pytest.approx(exact.sum(), rel=1e-12, abs=1e-9)
            assert tally.sum_abs == pytest.approx(np.abs(exact).sum(), rel=1e-12)
            assert tally.sum_squares == pytest.approx((exact**2).sum(), rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_any_bit_pattern(size: int) -> None:
    bits = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
    tally, counts = _both(bits.view(np.float32))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = bits.view(np.float32).astype(np.float64)
    assert tally.nan == np.isnan(x).sum() and tally.inf == np.isinf(x).sum()
    assert tally.sentinels == (np.isfinite(x) & (np.abs(x) > np.float32(1e30))).sum()
    assert tally.count + tally.nan + tally.inf + tally.sentinels == size
    kept = bits[np.abs(x) <= np.float32(1e30)]
    kept = kept[kept != 0x80000000]
    expected = np.bincount(kept >> 18, minlength=KEYS)
    expected[0] += (bits == 0x80000000).sum()
    assert np.array_equal(counts, expected)


@settings(max_examples=200)
@given(hnp.arrays(np.float32, st.integers(0, 70), elements=st.floats(width=32)))
def test_any_values(x: np.ndarray[Any, Any]) -> None:
    _both(x)


@pytest.mark.parametrize("where", [0, 5, 2047, 2048, 9000, 19999])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e30, -3.4028235e38])
def test_one_bad_value_anywhere(where: int, bad: float) -> None:
    x = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    x[where] = bad
    tally, counts = _both(x)
    rest = np.delete(x, where).astype(np.float64)
    assert tally.count == counts.sum() == 19999
    assert (tally.min, tally.max) == (rest.min(), rest.max())
    assert tally.sum == pytest.approx(rest.sum(), rel=1e-12, abs=1e-9)
    assert tally.nan + tally.inf + tally.sentinels == 1


def test_limits() -> None:
    border = np.float32(1e30)
    tally, _ = _both([border, -border, np.nextafter(border, np.float32(np.inf))])
    assert (tally.count, tally.sentinels) == (2, 1)
    tally, counts = _both([-0.0, 0.0, 1e-45, -1e-45])
    assert counts[0] == 3 and counts[8192] == 1
    assert tally.min == -(2.0**-149) and tally.max == 2.0**-149
    tally, _ = _both([-0.0])
    assert str(tally.min) == str(tally.max) == str(tally.sum) == "0.0"
    tally, counts = _both([np.nan, np.inf])
    assert (tally.count, tally.min, tally.max, counts.sum()) == (0, 0.0, 0.0, 0)
    tally, counts = _both(np.float32(3.5))
    assert (tally.count, tally.sum) == (1, 3.5)


def test_layouts_and_accumulation() -> None:
    x = np.random.default_rng(0).standard_normal((40, 50, 60)).astype(np.float32)
    counts = np.zeros(KEYS, np.int64)
    accumulate(x, counts)
    accumulate(x.transpose(2, 0, 1), counts)
    accumulate(x[:, ::2], counts)
    read_only = x.copy()
    read_only.flags.writeable = False
    accumulate(read_only, counts)
    expected = np.bincount((x + np.float32(0)).view(np.uint32).reshape(-1) >> 18, minlength=KEYS)
    half = np.bincount(x[:, ::2].copy().view(np.uint32).reshape(-1) >> 18, minlength=KEYS)
    assert np.array_equal(counts, 3 * expected + half)


def test_key_edges() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    keys = x.view(np.uint32) >> 18
    lower, upper = key_edges(keys)
    assert (lower <= np.abs(x)).all() and (np.abs(x) < upper).all()
    assert np.allclose(upper / lower, 1 + 1 / 32, atol=1 / 64)


@needs_kernel
def test_kernel_refuses_wrong_buffers() -> None:
    kernel = histogram._histogram
    good = np.zeros(4, np.float32), np.zeros(KEYS, np.int64), histogram._scratch()
    kernel.accumulate(*good)
    for position, wrong in ((0, np.zeros(3, np.uint8)), (1, np.zeros(5, np.int64)), (2, np.zeros(5, np.uint32))):
        arguments = [wrong if index == position else array for index, array in enumerate(good)]
        with pytest.raises(ValueError, match="not"):
            kernel.accumulate(*arguments)
    assert not histogram._scratch().any()


def test_numpy_can_be_forced() -> None:
    code = "from onnxq.calibration import histogram; import sys; sys.stdout.write(histogram.KERNEL)"
    environment = {**os.environ, "ONNXQ_NUMPY_KERNEL": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "numpy"
