"""Scales of blocks of 4-bit floating-point numbers, which are numbers themselves: those of NVFP4.

A block is E2M1 numbers times a scale of E4M3, times a number for the whole tensor, its *unit* (NVIDIA, Pretraining
Large Language Models with NVFP4, 2025, section 2). The unit is a power of two here, so that nothing but the numbers
and the scales of blocks is rounded, and any type of floats that multiplies them gives the same.

The largest magnitude of a block may stand for 6, which leaves nothing between 4 and 6 of it, or for 4 (Cook et al.,
Four Over Six, 2025), or for what lies between: of the scales that E4M3 has there, that of least squared error is taken.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.grids import float4, float8
from onnxq.ranged import next_power_of_two
from onnxq.spec import QuantSpec
from onnxq.weight_only.lanes import ends, pick

__all__ = ["scales_of_floats", "unit_of"]

Floats = NDArray[np.float32]

_STEPS = (0, 1, 2, 3, 4, 5, -1, -2)
"""Numbers of E4M3 next to the one that lets the largest magnitude stand for 6: up to 1.5 times that, and below."""
_LEAST_CODE, _MOST_CODE = 1, 126
"""Of E4M3: the smallest number above 0, and 448."""
_USED = 256.0
"""The largest scale that lets the largest number of a tensor stand for 6: E4M3 has 1.5 times that as well."""
_SMALLEST_UNIT, _LARGEST_UNIT = np.float32(2.0**-116), np.float32(2.0**117)
"""Half of the smallest scale of a block is a normal float32 number, and the largest times 6 is one."""


def unit_of(largest: float) -> float:
    """The unit of a tensor, a power of two: 1.75 to 3.5 times its largest magnitude can be held.

    Args:
        largest: magnitude in the tensor, finite, not negative.
    """
    unit = next_power_of_two(np.float32(largest / (float4.LARGEST * _USED))) if largest else np.float32(1)
    return float(np.clip(unit, _SMALLEST_UNIT, _LARGEST_UNIT))


def scales_of_floats(lanes: Floats, spec: QuantSpec) -> tuple[Floats, Floats]:
    """Scales of halves, see :mod:`onnxq.grids.float4`, of a tensor in its unit; and zero points, all 0.

    Args:
        lanes: (groups, size, count), finite, see :mod:`onnxq.weight_only.lanes`.
        spec: the grid.

    Returns:
        float32, (groups, count): half a number of E4M3 above 0 each.
    """
    low, high = ends(lanes)
    reach = np.maximum(-low, high)
    first = float8.quantize(reach, float4.LARGEST).astype(np.int16)
    codes = np.stack([np.clip(first + step, _LEAST_CODE, _MOST_CODE) for step in _STEPS]).astype(np.uint8)
    scales = float8.dequantize(codes, 0.5)
    best = pick(lanes, scales, np.zeros_like(scales), spec)[None]
    chosen = np.take_along_axis(scales, np.minimum(best, len(_STEPS) - 1), 0)[0]
    return chosen, np.zeros_like(chosen)
