"""Arrays kept by name and sample: in memory as long as they fit a budget, then on the disk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Activations"]

_BUDGET = 16 << 20


class Activations:
    """Arrays by tensor name and sample.

    Args:
        budget: bytes held in memory, 16 MB if None.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._left = _BUDGET if budget is None else budget
        self._arrays: dict[tuple[str, int], NDArray[Any]] = {}
        self._files: dict[tuple[str, int], Path] = {}
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}
        self._defaults: dict[str, NDArray[Any]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def put(self, name: str, sample: int, array: NDArray[Any]) -> None:
        """Keep an array."""
        self._shapes[name, sample] = array.shape
        if array.nbytes <= self._left or array.dtype.kind in "OSUV":
            self._left -= array.nbytes
            self._arrays[name, sample] = np.array(array)
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="onnxq-")
        path = Path(self._folder.name, f"{self._count}.npy")
        self._count += 1
        np.save(path, array)
        self._files[name, sample] = path

    def put_default(self, name: str, array: NDArray[Any]) -> None:
        """Give samples an array for which none is put; it is not copied."""
        self._defaults[name] = array

    def get(self, name: str, sample: int) -> NDArray[Any]:
        """An array that was put there, or else the default."""
        key = (name, sample)
        if key not in self._shapes and name in self._defaults:
            return self._defaults[name]
        return self._arrays[key] if key in self._arrays else np.load(self._files[key])

    def has(self, name: str, sample: int) -> bool:
        """Whether an array was put there."""
        return (name, sample) in self._shapes

    def common_shape(self, name: str, samples: int) -> list[int | None]:
        """The sizes of a tensor's axes, None where samples differ."""
        first, *rest = (self._shape(name, sample) for sample in range(samples))
        return [n if all(other[axis : axis + 1] == (n,) for other in rest) else None for axis, n in enumerate(first)]

    def _shape(self, name: str, sample: int) -> tuple[int, ...]:
        key = (name, sample)
        return self._shapes[key] if key in self._shapes else self._defaults[name].shape

    def names(self) -> list[str]:
        """Tensors that are there."""
        return list(dict.fromkeys(name for name, _ in (*self._arrays, *self._files)))

    def drop(self, name: str, samples: int) -> None:
        """Forget a tensor."""
        self._defaults.pop(name, None)
        for sample in range(samples):
            self._shapes.pop((name, sample), None)
            held = self._arrays.pop((name, sample), None)
            if held is not None:
                self._left += held.nbytes
            path = self._files.pop((name, sample), None)
            if path is not None:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Forget everything."""
        self._arrays.clear()
        self._files.clear()
        self._shapes.clear()
        self._defaults.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
