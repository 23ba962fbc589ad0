"""Numbers that stand for "masked" in an output: -1e4 in all frames behind the end of a text, beside scores of tens.

A Where puts them there, or a sum with a mask, so that they are the same in every model made of it, but for the scores
in such a sum. Counted as signal they hide all that is lost of the rest: of a recognizer whose scores had become zeros,
65 dB were left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import SENTINEL
from onnxq.graph.recognition.masks import LEAST

__all__ = ["are_numbers", "fill_of", "is_filled"]

_FAR = 100.0
"""Its magnitude over that of all others, at least."""
_TWICE = 2
_CROWD = 2.5
"""Largest over smallest magnitude of such numbers, at most."""
_SCORES = 4.0
"""How far they lie apart, in units of the largest magnitude of all others, at most: scores are added to a mask."""
_NEAR = 0.02
"""Part of it that a grid over both may move it by."""


def fill_of(values: NDArray[Any]) -> float | None:
    """What lies beyond this number stands for "masked" in a tensor of the float model; None where nothing does.

    It is more than one value, all about as far from zero, and a hundred times as far as anything else.

    Args:
        values: any shape; of other types than numpy's floats there is none.
    """
    if values.dtype.kind != "f" or values.size <= _TWICE:
        return None
    low, high = float(values.min()), float(values.max())
    far = low if -low > high else high
    if not LEAST <= abs(far) <= SENTINEL:  # nor is what is not finite
        return None
    edge = far / _CROWD
    beyond = _beyond(values, edge)
    crowd, others = values[beyond], values[~beyond]
    if crowd.size < _TWICE or not others.size:
        return None
    rest = max(-float(others.min()), float(others.max()))
    alike = float(crowd.max()) - float(crowd.min()) <= _SCORES * rest
    return edge if alike and 0 < rest <= abs(far) / _FAR else None


def is_filled(exact: NDArray[Any], found: NDArray[Any], fill: float) -> NDArray[np.bool_]:
    """Where a tensor is masked in both models: there is nothing to compare.

    Args:
        exact: of the float model.
        found: of the other one.
        fill: see :func:`fill_of`.
    """
    return np.asarray(_beyond(exact, fill) & (np.abs(found - exact) <= _NEAR * _CROWD * abs(fill)))


def are_numbers(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values of an output of the float model are numbers, and stand for nothing masked."""
    fill = fill_of(values)
    use = np.isfinite(values) & (np.abs(values) <= SENTINEL)
    return np.asarray(use if fill is None else use & ~_beyond(values, fill))


def _beyond(values: NDArray[Any], edge: float) -> NDArray[np.bool_]:
    return np.asarray(values <= edge if edge < 0 else values >= edge)
