"""Products of float32 matrices whose numbers are so large or so small that float32 would not hold their products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["wide_product"]

Floats = NDArray[np.float32]

_HELD = 50
"""Powers of two around 1 in which sums of products stay well inside float32: products below 2^100 each."""


def wide_product(left: Floats, right: Floats) -> NDArray[Any]:
    """``left @ right``: in float32 as usual, in float64 where a power of two has to be taken out of them first.

    Args:
        left: any matrices, as numpy multiplies them. With numbers that are not finite so is the result.
        right: as that.
    """
    exponents = [_exponent(each) for each in (left, right)]
    if all(-_HELD < exponent < _HELD for exponent in exponents):
        with np.errstate(invalid="ignore"):  # infinities
            product: NDArray[Any] = left @ right
        return product
    scaled = [np.ldexp(each, -exponent) for each, exponent in zip((left, right), exponents, strict=True)]
    return np.ldexp((scaled[0] @ scaled[1]).astype(np.float64), sum(exponents))


def _exponent(array: Floats) -> int:
    """Of the power of two above the largest magnitude; 0 where that is 0 or not finite."""
    largest = max(float(array.max(initial=0)), -float(array.min(initial=0)))
    return int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
