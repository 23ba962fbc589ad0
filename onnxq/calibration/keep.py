"""Hold back a few samples, spread over data of unknown length, within a number of samples and of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.chance import drawn, lot
from onnxq.calibration.statistics import KeptSample

__all__ = ["Keeper"]

_FEW, _MORE = 4, 4
"""So many samples may take so many times the bytes: what a single one shows decides badly."""


class Keeper:
    """Keeps one of every ``stride`` samples, that with the smallest lot; when there are too many, the stride doubles.

    The first sound sample is kept even if it alone is above the number of bytes.

    Args:
        most: how many samples to hold at most; none are held if it is 0.
        most_bytes: bytes of all arrays held together; up to four samples may take four times as many.
        expected: how many samples there will be, where it is known: those that would go again are not held at all.

    Attributes:
        kept: the samples held, by index.
    """

    def __init__(self, most: int, most_bytes: int, expected: int | None = None) -> None:
        self.kept: list[KeptSample] = []
        self._most, self._most_bytes = most, most_bytes
        self._stride = 1
        while most > 0 and expected is not None and expected > most * self._stride:
            self._stride *= 2
        self._expected = expected
        self._due = 0 if expected is None else self._drawn(0)

    def wants(self, index: int) -> bool:
        """Whether a sample is due; one that turns out unsound is not offered, and the next one is due then."""
        return self._most > 0 and index >= self._due

    def offer(
        self,
        index: int,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        means: Mapping[str, NDArray[np.float64]] | None = None,
        picked: Mapping[str, NDArray[Any]] | None = None,
        source: int | None = None,
    ) -> None:
        """Hold a sample.

        Args:
            index: its index.
            feeds: input name to array; copied.
            outputs: output name to array of the float model; copied.
            means: tensor name to the means of its channels.
            picked: tensor name to what the model picks from; copied.
            source: see :class:`KeptSample`.
        """
        of_model = (_copies(feeds), _copies(outputs), dict(means or {}), _copies(picked or {}))
        sample = KeptSample(index, *of_model, None if source == index else source)
        if not all(_storable(array) for part in (sample.feeds, sample.outputs) for array in part.values()):
            return
        self.kept.append(sample)
        self._thin()
        while len(self.kept) > 1 and (len(self.kept) > self._most or self._bytes() > self._allowed()):
            self._stride *= 2
            self._thin()
        self._due = self._after(index)

    def _thin(self) -> None:
        """One a block, as many samples as the stride."""
        self.kept = [min(block, key=_lot) for _, block in groupby(self.kept, lambda kept: kept.index // self._stride)]

    def _after(self, index: int) -> int:
        """The next index that would be held: where the number of samples is known, for good."""
        block = index // self._stride
        stop = (block + 1) * self._stride
        if self._expected is None:
            held = self.kept[-1:] if self.kept and self.kept[-1].index // self._stride == block else []
            return next((i for i in range(index + 1, stop) if all(lot(i) < _lot(k) for k in held)), stop)
        mine = self._drawn(block)
        return mine if mine > index else self._drawn(block + 1)

    def _drawn(self, block: int) -> int:
        start, stop = block * self._stride, (block + 1) * self._stride
        return drawn(start, max(start + 1, min(stop, self._expected or stop)))

    def _allowed(self) -> int:
        return self._most_bytes * (_MORE if len(self.kept) <= _FEW else 1)

    def _bytes(self) -> int:
        return sum(sample.nbytes for sample in self.kept)


def _lot(sample: KeptSample) -> int:
    return lot(sample.index)


def _copies(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: _plain(np.array(array, order="C")) for name, array in arrays.items()}


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """bfloat16 and 8-bit floats as float32, which holds them exactly; NumPy's own types as they are."""
    return array.astype(np.float32) if array.dtype.kind == "V" and "float" in array.dtype.name else array


def _storable(array: NDArray[Any]) -> bool:
    """Whether a file without pickle can hold it: NumPy's own types, and text."""
    if array.dtype == np.object_:
        return all(isinstance(item, str) for item in array.reshape(-1))
    return array.dtype.kind in "biufcSU"
