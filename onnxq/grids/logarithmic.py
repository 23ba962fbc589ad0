"""The logarithmic grid of 8 bits (HiSilicon's GFPQ): powers of ``2**(1/16)`` with a sign, and zero.

A grid is given by its clip value ``c = 2**(n/16)``, ``n`` whole. With ``z = n - 127`` the quantized value of ``x`` is
::

    +2**((k + z) / 16),  k = clamp(round(16 log2(x)) - z, 0, 127)     where  x >= 2**(z/16 - 1)
    -2**((k + z) / 16),  k = clamp(round(16 log2(-x)) - z, 1, 127)    where  x < -2**((z + 1)/16 - 1)
    0                                                                 between, and for NaN

and its code is the byte of sign and magnitude: ``k`` for positive numbers (0x7F is ``c``), ``0x80 + k`` for negative
ones (0xFF is ``-c``), 0x80 for zero. Numbers of one grid are numbers of every other that reaches as far; one a step
wider only gives up the smallest.

Computed in float64 and rounded to float32 at the end. For float32 numbers ``x`` that is the formula without any error:
16 log2(x) of no float32 number lies within 2.5e-8 of a half.

Source: MQBench, docs/source/user_guide/hardware/nnie.rst. There ``c`` is any number and ``z = round(16 log2(c)) -
127``: here ``c`` itself is rounded so, which gives the same ``z`` and a ``c`` that the vendor's tool accepts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "HIGHEST",
    "LOWEST",
    "RELATIVE_NOISE",
    "STEPS",
    "TOP",
    "ZERO",
    "clip_value",
    "dequantize",
    "exponent",
    "integral",
    "quantize",
    "snapped",
]

Floats = NDArray[np.float64]

STEPS = 16
"""Numbers an octave."""
TOP = 127
"""The largest ``k``."""
ZERO = 0x80
"""The code of zero."""
HIGHEST = 2047
"""The largest ``n``: ``2**128`` is not a float32."""
LOWEST = TOP - 126 * STEPS
"""The smallest ``n``: the smallest number of its grid is the smallest normal float32."""
RELATIVE_NOISE = (np.log(2.0) / STEPS) ** 2 / 12.0
"""Mean square of the relative error inside the grid, where ``log2(x)`` is spread evenly: 1.6e-4, or 38 dB."""


def exponent(clip: ArrayLike) -> NDArray[np.int64]:
    """``n`` of the clip value ``2**(n/16)`` that is nearest on the logarithmic scale.

    Args:
        clip: positive numbers; 0 counts as the smallest.
    """
    with np.errstate(divide="ignore"):
        exact = STEPS * np.log2(np.asarray(clip, np.float64))
    return np.asarray(np.clip(np.rint(exact), LOWEST, HIGHEST), np.int64)


def clip_value(n: ArrayLike) -> Floats:
    """``2**(n/16)`` in float64."""
    return np.asarray(np.exp2(np.asarray(n, np.float64) / STEPS), np.float64)


def snapped(clip: ArrayLike) -> NDArray[np.float32]:
    """The clip value next to a number, up or down by at most 2.2 %: the largest number then rounds to ``c`` itself."""
    return np.asarray(clip_value(exponent(clip)), np.float32)


def quantize(x: ArrayLike, clip: ArrayLike) -> NDArray[np.uint8]:
    """Codes of numbers.

    Args:
        x: real values of any shape, taken as float32.
        clip: clip values in a shape that broadcasts against ``x``.

    Returns:
        Bytes of sign and magnitude, shape of ``x``.
    """
    values = np.asarray(np.asarray(x, np.float32), np.float64)
    z = np.asarray(exponent(clip) - TOP, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        k = np.rint(STEPS * np.log2(np.abs(values))) - z
        positive = values >= np.exp2(z / STEPS - 1.0)
        negative = values < -np.exp2((z + 1.0) / STEPS - 1.0)
    code = np.where(positive, np.clip(k, 0, TOP), np.where(negative, ZERO + np.clip(k, 1, TOP), ZERO))
    return np.asarray(code, np.uint8)


def dequantize(code: ArrayLike, clip: ArrayLike) -> NDArray[np.float32]:
    """The numbers that codes stand for.

    Args:
        code: bytes of sign and magnitude, any shape.
        clip: clip values in a shape that broadcasts against ``code``.

    Returns:
        float32 values of the shape of ``code``.
    """
    codes = np.asarray(code).astype(np.int64)
    return np.asarray(np.sign(ZERO - codes) * clip_value(exponent(clip) - TOP + codes % ZERO), np.float32)


def integral(x: Floats, clip: float) -> Floats:
    """``integral from 0 to x of (t - quantized(t))**2 dt``, in closed form.

    Args:
        x: upper ends, float64.
        clip: the clip value.
    """
    n = int(exponent(clip))
    size = clip_value(n - TOP + np.arange(TOP + 1))
    borders = clip_value(n - TOP + np.arange(1, TOP + 1) - 0.5)  # of the numbers 1 to 127, from below
    first = [clip_value(n - TOP - STEPS), clip_value(n - TOP + 1 - STEPS)]  # ends of the zero zone
    upper = _one_side(np.maximum(x, 0.0), np.concatenate([[first[0]], borders]), size)
    lower = _one_side(np.maximum(-x, 0.0), np.concatenate([[first[1]], borders[1:]]), size[1:])
    return np.where(x < 0.0, -lower, upper)


def _one_side(x: Floats, borders: Floats, numbers: Floats) -> Floats:
    """The integral over numbers without a sign: 0 up to the first border, then one number a cell."""
    starts, given = np.concatenate([[0.0], borders]), np.concatenate([[0.0], numbers])
    cells = ((starts[1:] - given[:-1]) ** 3 - (starts[:-1] - given[:-1]) ** 3) / 3.0
    below = np.concatenate([[0.0], np.cumsum(cells)])
    at = np.searchsorted(borders, x, side="right")
    return np.asarray(below[at] + ((x - given[at]) ** 3 - (starts[at] - given[at]) ** 3) / 3.0, np.float64)
