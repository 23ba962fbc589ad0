"""The arithmetic by which Tengine's ``quant_tool_uint8`` quantizes weights, and weights for which it gives ours.

The tool takes no scales of weights (``tools/quantize/quant_save_graph.cpp``, all in float32)::

    scale = (max(w) - min(w)) / 255        zero_point = (int)(-min(w) / scale)
    q = clamp(roundf(w / scale + zero_point), 0, 255)

Weights on a grid of scale s would make the zero point off by one wherever ``-min(w) / s`` falls short of a whole number
by a rounding error. So the lowest weight is put a quarter of a step below its grid point, and the highest 255 steps
above it: the tool then finds the scale and the zero point that were meant, and the rest, which stands on grid points,
rounds to the same integers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.qparams import QParams, dequantize, quantize

__all__ = ["as_the_tool_sees", "for_the_tool", "of_the_tool"]

_STEPS = np.float32(255.0)
_BELOW = (0.25, 0.75, -0.25, -0.75)
"""Steps by which the lowest weight stands below a grid point: the integers are then 0 to 255 or 0 to 254; for weights
of one sign, whose zero point is rounded up, 0 or 1 to 255."""


def of_the_tool(w: NDArray[Any]) -> tuple[np.float32, int]:
    """Scale and zero point that the tool chooses for float weights that are not all equal."""
    lowest, highest = np.float32(w.min()), np.float32(w.max())
    scale = np.float32(np.float32(highest - lowest) / _STEPS)
    return scale, int(np.float32(-lowest / scale))


def _stored_by_the_tool(w: NDArray[Any]) -> NDArray[np.uint8]:
    """The integers that the tool stores for float weights."""
    scale, zero = of_the_tool(w)
    shifted = (np.asarray(w, np.float32) / scale + np.float32(zero)).astype(np.float64)
    rounded = np.copysign(np.floor(np.abs(shifted) + 0.5), shifted)
    return np.asarray(np.clip(rounded, 0, 255), np.uint8)


def for_the_tool(w: NDArray[Any], wanted: QParams) -> QParams:
    """Numbers near those wanted that the tool can be made to choose.

    Where the integers reach from 0 to 255 they differ in the last bit of the scale at most; else they are what the tool
    chooses for these weights.

    Args:
        w: weights, not all equal.
        wanted: uint8, per tensor.
    """
    integers = quantize(w, wanted)
    if int(integers.min()) == 0 and int(integers.max()) == 255 and 0 <= int(wanted.zero_point) <= 255:
        scale, zero = np.float32(np.float32(_STEPS * wanted.scale) / _STEPS), int(wanted.zero_point)
    else:
        scale, zero = of_the_tool(np.asarray(w, np.float32))
    return replace(wanted, scale=np.asarray(scale, np.float32), zero_point=np.asarray(zero, np.int64))


def as_the_tool_sees(w: NDArray[Any], numbers: QParams) -> NDArray[np.float32] | None:
    """Float weights from which the tool makes the scale, the zero point and the integers given.

    Args:
        w: weights.
        numbers: of :func:`for_the_tool`.

    Returns:
        Weights of the shape of ``w``, within half a step of their grid points; ``None`` where the tool cannot be made
        to choose these numbers.
    """
    integers = quantize(w, numbers)
    scale, zero = np.float32(numbers.scale), int(numbers.zero_point)
    grid = dequantize(integers, numbers)
    values = np.asarray(w, np.float32)
    candidates = [_ends(scale, zero, below) for below in _BELOW]
    for ends in (*candidates, (values.min(), values.max())):
        if ends is None:
            continue
        made = np.clip(grid, *ends)
        made.reshape(-1)[[int(np.argmin(values)), int(np.argmax(values))]] = ends
        if of_the_tool(made) == (scale, zero) and np.array_equal(_stored_by_the_tool(made), integers):
            return np.asarray(made, np.float32)
    return None


def _ends(scale: np.float32, zero: int, below: float) -> tuple[np.float32, np.float32] | None:
    """A lowest and a highest weight, 255 steps apart to the last bit; ``None`` where no float32 numbers are."""
    near = np.float32(_STEPS * scale)
    for span in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
        if np.float32(span / _STEPS) == scale:
            unit = float(np.spacing(span))
            lowest = -np.rint((zero + below) * float(scale) / unit) * unit
            return np.float32(lowest), np.float32(lowest + float(span))
    return None
