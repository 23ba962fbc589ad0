"""Moments of one layer's input, summed up over samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.common.quantized_layer import QuantizedLayer
from onnxq.algorithms.layerwise.moments import Moments
from onnxq.wide_products import wide_product

__all__ = ["Sums"]

Array = NDArray[Any]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

_POSITIONS = 32768
_POSITIONS_PER_INPUT = 16
"""A layer is seen at no more than the larger of 32768 and 16 positions an input, spread evenly over the samples."""
_FAR = 32.0
"""Standard deviations from zero beyond which an input is far from it: a product in float32 loses 1e-4 of the spread."""


class Sums:
    """Sums over samples of one layer: products in float32, a few thousand positions at a time, added up in float64.

    Inputs far from zero are taken less what they are in the first sample: float32 products about zero would not hold
    their spread.

    Args:
        layer: the layer.
        weight: of the float model, (groups, outputs, inputs).
        samples: how many there will be in all sums that are to be joined.
    """

    def __init__(self, layer: QuantizedLayer, weight: Doubles, samples: int) -> None:
        groups, outputs, inputs = weight.shape
        self._layer, self._weight = layer, weight
        self._most = -(-max(_POSITIONS, _POSITIONS_PER_INPUT * inputs) // max(1, samples))
        self._count = 0
        self._pivot: Floats | None = None
        self._mean = np.zeros((groups, inputs))
        self._gram = np.zeros((groups, inputs, inputs))
        self._moved: tuple[Doubles, Doubles] | None = None  # input's change: sum, and against the input
        self._beside = np.zeros((groups, outputs)), np.zeros((groups, outputs, inputs))  # the same of what is added
        self._alike = True

    def add(
        self, number: int, x: Array, original: Array | None = None, beside: tuple[Array, Array] | None = None
    ) -> None:
        """One sample more.

        Args:
            number: of the sample.
            x: what the layer reads.
            original: what it reads in the float model; ``None`` where ``x`` is that.
            beside: what is added to its output, and what is in the float model.
        """
        if not x.size or (original is not None and not original.size):  # of a branch that was not taken
            return
        if original is not None and x.shape != original.shape:
            self._alike = False
        if not self._alike:
            return
        phase = (number * 0.6180339887) % 1.0
        read = self._layer.inputs(x, self._most, phase)
        if not self._count:
            self._pivot = _pivot(read)
        columns = read if self._pivot is None else read - self._pivot
        rows = columns.transpose(0, 2, 1)
        self._count += columns.shape[2]
        self._mean += columns.sum(axis=2, dtype=np.float64)
        self._gram += wide_product(columns, rows)
        if original is None:
            return
        change = read - self._layer.inputs(original, self._most, phase)
        if self._moved is None:
            self._moved = np.zeros_like(self._mean), np.zeros_like(self._gram)
        _add(self._moved, change, rows)
        if beside is not None and beside[0].shape == beside[1].shape:
            added = self._layer.beside(x, beside[0] - beside[1], self._most, phase)
            if added is not None:
                _add(self._beside, added, rows)

    def moments(self) -> Moments | None:
        """``None`` where nothing was seen, not all of it was finite, or positions are not those of the float model."""
        if not self._count or not self._alike or not np.isfinite(self._gram.sum()):
            return None
        off = self._mean / self._count
        mean = off if self._pivot is None else off + self._pivot[:, :, 0]
        spread = self._gram
        spread /= self._count
        spread -= off[:, :, None] * off[:, None, :]
        if self._moved is None:
            return Moments(self._count, mean, spread)
        shift = np.einsum("goi,gi->go", self._weight, self._moved[0]) + self._beside[0]
        drift = self._weight @ self._moved[1] + self._beside[1]
        shift /= self._count
        drift /= self._count
        drift -= shift[:, :, None] * off[:, None, :]
        if not np.isfinite(drift.sum()):
            return None
        return Moments(self._count, mean, spread, shift, drift)


def _add(sums: tuple[Doubles, Doubles], change: Floats, rows: Floats) -> None:
    sums[0][...] += change.sum(axis=2, dtype=np.float64)
    sums[1][...] += wide_product(change, rows)


def _pivot(columns: Floats) -> Floats | None:
    """Means of inputs (groups, inputs, positions) as (groups, inputs, 1); None where none of them is far from zero."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is found in the end
        mean = columns.mean(axis=2, dtype=np.float64, keepdims=True)
        spread = columns.var(axis=2, keepdims=True).mean(axis=1, keepdims=True)
        far = np.isfinite(mean).all() and bool((np.square(mean) > _FAR**2 * spread).any())
    return mean.astype(np.float32) if far else None
