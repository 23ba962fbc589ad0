"""How much of a tensor lies beyond a quantizer's grid: what is lost where no quantizer clips it any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.share_out import known_bytes, share_out
from onnxq.calibration.taps import tap
from onnxq.checks.randomness import is_random
from onnxq.errors import OnnxqError
from onnxq.measuring.random_inputs import on_random_inputs
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.quantized import Quantized

__all__ = ["clipped"]

_BUDGET = 256 << 20
"""Bytes of tensors that one run gives back."""
_FELT = 1e-4
"""Share of a tensor's power that clipping takes, 40 dB, below which it is not told."""
_ROUNDING = 1 / 12
"""Power of rounding, in squared steps."""


def clipped(
    inside: Quantized, bounds: Mapping[str, tuple[float, float]], steps: Mapping[str, float], options: Options
) -> dict[str, float]:
    """Tensors of which bounds cut off more than rounding to a grid costs, on random inputs.

    Args:
        inside: a float model, with the numbers that tell the ranges of its inputs.
        bounds: tensor → lowest and highest number that a grid holds.
        steps: tensor → distance between two numbers of the grid.
        options: custom operators and providers.

    Returns:
        Tensor → share of its numbers that lie beyond; empty where the model does not run on random inputs.
    """
    if not bounds or is_random(inside.model):
        return {}
    sums = {name: np.zeros(4) for name in bounds}
    try:
        tapped = tap(inside.model, list(bounds), keep_outputs=False)
        if not tapped.outputs:
            return {}
        session = Session(tapped.model, optimize=False, prepack=False, **options.session)

        def run(feeds: Mapping[str, NDArray[Any]]) -> None:
            shown = list(tapped.outputs)
            for group in share_out(shown, known_bytes(inside.model, shown, feeds), _BUDGET):
                found = session.run(feeds, [tapped.outputs[name] for name in group])
                for name in group:
                    sums[name] += _sums(found[tapped.outputs[name]], *bounds[name])

        on_random_inputs(inside, run)
    except OnnxqError:
        return {}
    felt = {}
    for name, (count, beyond, lost, power) in sums.items():
        if lost > _ROUNDING * steps[name] ** 2 * count and lost > _FELT * power:
            felt[name] = float(beyond / count)
    return felt


def _sums(array: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """How many numbers a tensor has, how many lie beyond the bounds, the power of that, and of all."""
    numbers = array[np.isfinite(array)].astype(np.float64)
    beyond = numbers - np.clip(numbers, low, high)
    return np.array([numbers.size, np.count_nonzero(beyond), np.square(beyond).sum(), np.square(numbers).sum()])
