"""Calibration samples, one at a time as complete feeds, whatever they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from onnxq.calibration.chance import drawn
from onnxq.calibration.feeds import Fitter
from onnxq.errors import DataError, OnnxqError

__all__ = ["Pick", "Samples"]

Pick = Callable[[Sequence[int] | None], Iterator[Any]]
"""The raw items at some indices, or all."""


class Samples:
    """Feeds for a model, made by `open_data`.

    Iterating gives ``dict[str, ndarray]``, the same samples in the same order each time; a generator or iterator can
    be used only once.

    Attributes:
        length: number of samples, None if it is not known beforehand.
        total: number of those that there are, used or not, likewise.
        repeatable: whether it can be iterated more than once.
        kind: what the source is, for people, e.g. ``"npz file"``.
    """

    def __init__(
        self,
        kind: str,
        items: Pick,
        total: int | None,
        fitter: Fitter,
        *,
        samples: int | None,
        seekable: bool = True,
        repeatable: bool = True,
    ) -> None:
        self.kind, self.repeatable, self.total = kind, repeatable, total
        self._items, self._fitter, self._limit = items, fitter, samples
        self._indices: list[int] | None = None
        if total is not None and seekable:
            count = total if samples is None else min(samples, total)
            self._indices = [drawn(i * total // count, (i + 1) * total // count) for i in range(count)]
            total = count
        self.length = total if samples is None or total is None else min(samples, total)
        if self.length == 0:
            raise DataError("no samples", where=f"calibration data ({kind})", hint="Give at least one sample.")

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """The feeds.

        Raises:
            DataError: a sample cannot be read or does not fit the model's inputs (names it), or there is none.
        """
        count = 0
        items = islice(self._guarded(), self._limit)
        for count, item in enumerate(items, 1):
            yield self._fitter.fit(item, self._where(count - 1))
        if not count:
            raise DataError("no samples", where=f"calibration data ({self.kind})", hint="Give at least one sample.")

    def index_of(self, position: int) -> int:
        """Index in the source of the sample that comes at ``position``."""
        return position if self._indices is None else self._indices[position]

    def _where(self, position: int) -> str:
        return f"sample {self.index_of(position)}"

    def _guarded(self) -> Iterator[Any]:
        """The raw items; whatever the user's code raises becomes a DataError that names the sample."""
        position = 0
        try:
            for item in self._items(self._indices):
                yield item
                position += 1
        except OnnxqError:
            raise
        except Exception as error:
            where = f"calibration data ({self.kind}), {self._where(position)}"
            raise DataError(f"the data raised {type(error).__name__}: {error}", where=where) from error
