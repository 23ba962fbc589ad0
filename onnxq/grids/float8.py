"""The grid of 8-bit floating-point numbers E4M3FN: a sign, four bits of exponent and three of mantissa.

A grid is given by its scale ``s``: it holds ``s`` times each number of the format, whose largest is 448 and smallest
above 0 is ``2**-9``. The quantized value of ``x`` is ``s`` times the number next to ``x / s``, the even one of two
equally near, and the largest where ``x / s`` is beyond; NaN stays NaN. That is what QuantizeLinear (opset 19 and on,
``saturate = 1``) and DequantizeLinear compute, bit for bit.

Source: Micikevicius et al., FP8 Formats for Deep Learning, 2022, table 1; ONNX, "Float stored in 8 bits".
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LARGEST", "RELATIVE_NOISE", "dequantize", "fitted", "quantize"]

LARGEST = 448.0
"""The largest number of the format."""
RELATIVE_NOISE = 2.0**-6 / 12.0 * 0.375 / np.log(2.0)
"""Mean square of the relative error among normal numbers, where ``log2(x)`` is spread evenly: 7.0e-4, or 31.5 dB."""
_SMALLEST_SCALE = np.float32(2.0**-117)
"""``2**-9`` of it is the smallest normal float32 number."""


def fitted(end: ArrayLike) -> NDArray[np.float32]:
    """The scale with which the largest number of the format stands for ``end``.

    Args:
        end: finite, not negative.
    """
    scale = np.asarray(np.asarray(end, np.float64) / LARGEST, np.float32)
    return np.asarray(np.maximum(scale, _SMALLEST_SCALE), np.float32)


def quantize(x: ArrayLike, scale: ArrayLike) -> NDArray[np.uint8]:
    """Bytes of the format.

    Args:
        x: real values of any shape, computed in float32.
        scale: float32, in a shape that broadcasts against ``x``.

    Returns:
        Shape of ``x``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.asarray(x, np.float32) / np.asarray(scale, np.float32)
        held = np.clip(ratio, np.float32(-LARGEST), np.float32(LARGEST))
        return np.asarray(held.astype(ml_dtypes.float8_e4m3fn)).view(np.uint8)


def dequantize(code: ArrayLike, scale: ArrayLike) -> NDArray[np.float32]:
    """The numbers that bytes stand for.

    Args:
        code: bytes of the format, any shape.
        scale: float32, in a shape that broadcasts against ``code``.

    Returns:
        float32 values of the shape of ``code``.
    """
    numbers = np.asarray(code, np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return np.asarray(numbers * np.asarray(scale, np.float32), np.float32)
