"""Data in the form that onnxruntime's own quantizer reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader

__all__ = ["Reader"]


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> Mapping[str, NDArray[Any]] | None:
        """The next sample; None behind the last."""
        return next(self.left, None)
