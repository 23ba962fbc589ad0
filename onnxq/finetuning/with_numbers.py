"""Samples that a float model makes numbers of: one NaN in a step would leave nothing but NaN of all that is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.console.terminal import plural
from onnxq.errors import DataError

__all__ = ["with_numbers"]

Feeds = Mapping[str, NDArray[Any]]


def with_numbers(
    feeds: Sequence[Feeds], run: Callable[[Feeds], Sequence[NDArray[Any]]], place: Callable[[int], int] = int
) -> tuple[list[Feeds], str]:
    """The samples whose inputs are finite, or of which the model makes finite outputs all the same, as of masks.

    Args:
        feeds: samples.
        run: a sample → the float model's outputs.
        place: of a sample that comes after so many others, in the data that it was drawn from.

    Returns:
        Them, and what to say of the others.

    Raises:
        DataError: there are none.
    """
    lost = [at for at, sample in enumerate(feeds) if not _finite(sample.values()) and not _finite(run(sample))]
    if not lost:
        return list(feeds), ""
    if len(lost) == len(feeds):
        raise DataError(
            "each sample holds NaN or infinity, and the float model makes no number of it",
            where="data",
            hint="Look at where the data is made for divisions by zero and missing values",
        )
    gone = set(lost)
    told = f"{plural(len(lost), 'sample')} with NaN or infinity left out, the first is sample {place(lost[0])}; "
    return [sample for at, sample in enumerate(feeds) if at not in gone], told


def _finite(arrays: Any) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays if np.asarray(array).dtype.kind == "f")
