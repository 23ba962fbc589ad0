"""Samples made of the rows of arrays: a row each, or as many as the batch that a model is fixed to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from onnxq.calibration.feeds import Fitter
from onnxq.calibration.numpy_files import RowArray
from onnxq.calibration.samples import Pick
from onnxq.console.terminal import plural
from onnxq.errors import DataError

__all__ = ["of_rows"]

_log = logging.getLogger("onnxq")

Array = RowArray | np.ndarray[Any, Any]


def of_rows(arrays: Mapping[str, Array] | Array, length: int, fitter: Fitter, where: str) -> tuple[Pick, int]:
    """The samples that the rows of arrays make, and how many they are.

    Where the model's batch is fixed to more than one and rows are single samples, they are put together in their order,
    which the log says; rows that are too few for a batch are left out.

    Args:
        arrays: by input name, or for a model with one input; what has no axes belongs to every sample.
        length: of their first axes.
        fitter: knows the inputs.
        where: the data, for messages.

    Raises:
        DataError: there are fewer rows than a batch has.
    """
    alone = not isinstance(arrays, Mapping)
    columns: Mapping[str, Array] = {"": arrays} if alone else arrays  # type: ignore[dict-item, assignment]
    batch = fitter.rows_in_a_sample(arrays)
    total, left = divmod(length, batch)
    if batch > 1:
        rows = plural(length, "row")
        if length and not total:
            hint = "Give more samples, or export the model with a batch of 1 or a free one"
            raise DataError(f"{rows}, and the model's batch is fixed to {batch}", where=where, hint=hint)
        over = f"; the last {'one is' if left == 1 else f'{left} are'} left out" if left else ""
        _log.warning(
            "the model's batch is fixed to %d: %s of data make %s%s", batch, rows, plural(total, "sample"), over
        )

    def items(indices: Sequence[int] | None) -> Iterator[Any]:
        chosen = range(total) if indices is None else indices
        single = [i * batch + k for i in chosen for k in range(batch)] if batch > 1 else chosen
        read = [_gathered(_column(array, single), batch, bool(array.shape)) for array in columns.values()]
        for values in zip(*read, strict=True):
            yield values[0] if alone else dict(zip(columns, values, strict=True))

    return items, total


def _column(array: Array, indices: Sequence[int]) -> Iterator[np.ndarray]:
    if isinstance(array, RowArray):
        return array.rows(indices)
    return (array[i] if array.ndim else array for i in indices)


def _gathered(rows: Iterator[np.ndarray], batch: int, has_axes: bool) -> Iterator[np.ndarray]:
    """Every ``batch`` rows in one array; of an array without axes one of them."""
    if batch == 1:
        yield from rows
        return
    while some := list(islice(rows, batch)):
        yield np.stack(some) if has_axes else some[0]
