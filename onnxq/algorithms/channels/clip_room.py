"""How far channels may be scaled where a Clip stands between two layers: those below its upper bound have room."""

from __future__ import annotations

import numpy as np

from onnxq.algorithms.channels.channel_noise import Channels
from onnxq.algorithms.channels.pairs import LayerPair

__all__ = ["let_through", "smallest_scale"]

_BELOW = 0.999
"""Of the upper bound: a channel that exceeds it counts as clipped."""


def smallest_scale(pair: LayerPair, magnitude: Channels) -> Channels:
    """What each channel may be divided by at least so that it does not rise above the bound of the Clip.

    Args:
        pair: with a Clip.
        magnitude: (C,) largest value of each channel behind the Clip.

    Returns:
        (C,) float64, below 1; infinite for channels that must stay as they are: clipped ones, and dead ones.
    """
    share = magnitude / pair.cap
    return np.where((share > 0) & (share < _BELOW), share, np.inf)


def let_through(scale: Channels, least: Channels) -> list[Channels]:
    """What a Clip leaves of a scale: as it is, and divided by its largest number, nowhere below the smallest allowed.

    Without a Clip only the ratios of a scale matter; here some channels keep theirs.

    Args:
        scale: (C,) positive.
        least: (C,) the smallest scale of each channel; infinite where it must be 1.
    """
    free = np.isfinite(least)
    if not free.any():
        return []
    return [np.where(free, np.maximum(scale / end, least), 1.0) for end in (1.0, float(scale[free].max()))]
