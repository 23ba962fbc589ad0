"""Products of numbers that float32 cannot square."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.wide_products import wide_product
from tests.models import normal


@pytest.mark.parametrize(("first", "second"), [(0, 0), (100, 100), (-120, -100), (110, -100), (127, 3)])
def test_a_product_is_that_of_the_numbers_however_large(first: int, second: int) -> None:
    left, right = normal(2, 5, 7, scale=0.5), normal(2, 7, 3, seed=1, scale=0.5)
    found = wide_product(np.ldexp(left, first), np.ldexp(right, second))
    assert np.array_equal(np.ldexp(found.astype(np.float64), -first - second), (left @ right).astype(np.float64))


def test_what_is_not_finite_stays_so_and_zeros_are_zeros() -> None:
    endless = np.full((2, 2), np.inf, np.float32)
    assert not np.isfinite(wide_product(endless, endless)).any()
    assert not wide_product(np.zeros((2, 3), np.float32), normal(3, 2)).any()
    assert wide_product(np.zeros((0, 3), np.float32), normal(3, 2)).shape == (0, 2)
