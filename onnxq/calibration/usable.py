"""Is there any sample in the data that the model makes numbers of?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import DataError

__all__ = ["Usable"]

Arrays = Mapping[str, NDArray[Any]]


class Usable:
    """Looks at samples until one is usable: it holds numbers alone, or the model makes a number of it all the same.

    A mask may well hold infinities, and a model may have been made for missing values.

    Attributes:
        error: what to raise where no sample turns out to be usable, and none of those seen was; else None.
    """

    def __init__(self) -> None:
        self.error: DataError | None = None
        self._found = False

    def look(self, feeds: Arrays, outputs: Arrays, index: int) -> None:
        """Take in a sample.

        Args:
            feeds: input name to array.
            outputs: what the float model makes of it.
            index: of the sample.
        """
        if self._found:
            return
        bad = [name for name, array in feeds.items() if _is_float(array) and not np.isfinite(array).all()]
        made = [array for array in outputs.values() if _is_float(array)] or [feeds[name] for name in bad]
        self._found = not bad or any(bool(np.isfinite(array).any()) for array in made)
        if self._found:
            self.error = None
        elif self.error is None:
            self.error = DataError(
                "no sample can be used: each holds NaN or infinity, and the model makes nothing but NaN of them",
                where=f"data, input {bad[0]!r}, first in sample {index}",
                hint="Look at where the data is made for divisions by zero and missing values",
            )


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" and bool(array.size)
