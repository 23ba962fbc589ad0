"""Calibration samples, one at a time as complete feeds, whatever they come from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from onnxq.calibration.chance import drawn_of
from onnxq.calibration.feeds import Fitter
from onnxq.errors import DataError, OnnxqError

__all__ = ["Pick", "Samples", "Within", "length_of"]

Pick = Callable[[Sequence[int] | None], Iterable[Any]]
"""The raw items at some indices, or all."""
Within = Callable[[], AbstractContextManager[None]]
"""What the code that gives the items runs within: that of a user's file finds the modules beside it, and what it prints
goes to stderr."""
_END = object()

_log = logging.getLogger("onnxq")


class Samples:
    """Feeds for a model, made by `open_data`.

    Iterating gives ``dict[str, ndarray]``, the same samples in the same order each time; a generator or iterator can
    be used only once.

    Attributes:
        length: number of samples, None if it is not known beforehand.
        total: number of those that there are, used or not, likewise.
        repeatable: whether it can be iterated more than once.
        seekable: whether a sample is had without those before it.
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
        within: Within = nullcontext,
        files: Sequence[str] = (),
    ) -> None:
        self._files = files
        self.kind, self.repeatable, self.seekable, self.total = kind, repeatable, seekable, total
        self._items, self._fitter, self._limit, self._within = items, fitter, samples, within
        self._indices = None if total is None else self._drawn(total)
        self._warned = False
        self.length = total if samples is None or total is None else min(samples, total)
        if self.length == 0:
            raise DataError("no samples", where=f"data ({kind})", hint="Give at least one sample.")

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """The feeds.

        Raises:
            DataError: a sample cannot be read or does not fit the model's inputs (names it), or there is none.
        """
        count = 0
        for count, item in enumerate(self._guarded(), 1):
            yield self._fitter.fit(item, self._where(count - 1))
        if not count:
            raise DataError("no samples", where=f"data ({self.kind})", hint="Give at least one sample.")

    def index_of(self, position: int) -> int:
        """Index in the source of the sample that comes at ``position``."""
        return position if self._indices is None else self._indices[position]

    def _where(self, position: int) -> str:
        index = self.index_of(position)
        return f"sample {index} ({self._files[index]})" if self._files else f"sample {index}"

    def _drawn(self, total: int) -> list[int] | None:
        """Indices of the samples to use, of so many; None where all are, one after the other."""
        count = total if self._limit is None else min(self._limit, total)
        if count == total and not self.seekable:
            return None
        return drawn_of(total, count)

    def _guarded(self) -> Iterator[Any]:
        """The raw items; whatever the user's code raises becomes a DataError that names the sample."""
        at = 0
        try:
            if self.seekable:
                for item in self._one_by_one(lambda: self._items(self._indices)):
                    yield item
                    at += 1
                return
            with self._within():
                source = self._items(None)
            total = length_of(source) if self.total is None else self.total  # of what a function gave
            self._indices = None if total is None else self._drawn(total)
            wanted = None if self._indices is None else set(self._indices)
            end = self._limit if wanted is None else max(wanted) + 1
            items = self._one_by_one(lambda: source)
            for item in items:
                if wanted is None or at in wanted:
                    yield item
                at += 1
                if at == end:
                    break
            if total is None and at == self._limit:
                self._warn_of_more(items)
        except OnnxqError:
            raise
        except (Exception, SystemExit) as error:
            where = f"data ({self.kind}), sample {self.index_of(at) if self.seekable else at}"
            raise DataError(f"the data raised {type(error).__name__}: {error}", where=where) from error

    def _one_by_one(self, source: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """The items of an iterable, each step of the user's code taken in the surroundings that it needs."""
        with self._within():
            items = iter(source())
        while True:
            with self._within():
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def _warn_of_more(self, rest: Iterator[Any]) -> None:
        """Say once that the first samples were taken, if there are more; of the user's own iterator none is lost."""
        more = not self.repeatable
        if not self._warned and self.repeatable:
            with suppress(Exception):  # what is not used must not fail
                more = any(True for _ in rest)
        if more and not self._warned:
            self._warned = True
            _log.warning(
                "data (%s): how many samples there are is not known, so the first %d are used, not some "
                "of all: if they are sorted, shuffle them, or give a list or a data loader with a length",
                self.kind,
                self._limit,
            )


def length_of(source: Any) -> int | None:
    """``len(source)`` where it has one; a torch DataLoader over an iterable data set raises TypeError."""
    try:
        return len(source)
    except TypeError:
        return None
