"""The grid of 4-bit floating-point numbers E2M1: a sign, two bits of exponent and one of mantissa.

The numbers are 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a sign; there is no infinity and no NaN. What lies between two is
rounded to the nearer one, of two equally near to that whose last bit is 0, and what lies beyond to the largest.

Twice a number is a whole one: 0, 1, 2, 3, 4, 6, 8 and 12, the *halves* below, which int8 holds and a scale half as
large turns back into what they stand for, exactly.

Source: Open Compute Project, Microscaling Formats (MX) Specification 1.0, section 5.3.3; ONNX, "Float stored in 4
bits".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LARGEST", "bytes_of", "to_halves"]

LARGEST = 6.0
"""The largest number of the format."""
_MOST = int(2 * LARGEST)
_HALVES = np.array([0, 1, 2, 3, 4, 6, 8, _MOST], np.int8)
_SIGN = 8
_SIZES = np.searchsorted(_HALVES, np.arange(_MOST + 1)).astype(np.uint8)
_BYTES = np.concatenate([_SIZES[:0:-1] | _SIGN, _SIZES])
"""Bits by the number in halves and 12."""
_FROM_4, _FROM_8 = np.float32(4), np.float32(8)
"""Magnitudes in halves from which on every second and every fourth one is in the format."""


def to_halves(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest number of the format, in place.

    Args:
        x: real values in halves, float32 of any shape; changed.

    Returns:
        ``x``: whole numbers, -12 to 12.
    """
    size = np.abs(x)
    step = np.where(size < _FROM_4, np.float32(1), np.where(size < _FROM_8, np.float32(2), np.float32(4)))
    np.divide(x, step, out=x)
    np.rint(x, out=x)
    np.multiply(x, step, out=x)
    return np.clip(x, np.float32(-_MOST), np.float32(_MOST), out=x)


def bytes_of(halves: ArrayLike) -> NDArray[np.uint8]:
    """The bits of numbers of the format, one number a byte, in its lower half; 0 has no sign.

    Args:
        halves: numbers of the format in halves, int8 of any shape.
    """
    return np.asarray(_BYTES[np.asarray(halves, np.int8) + np.int8(_MOST)], np.uint8)
