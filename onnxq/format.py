"""A way to write a result: what it computes, the files, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from onnxq.quantized import Quantized

__all__ = ["Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write a result.

    Attributes:
        render: the ONNX model that says, in onnxruntime, what the artifact computes; for QDQ it is the artifact itself.
        write: writes the artifact: the ONNX model at the path, sidecar files beside it with its stem. Returns the files
            written, the model first.
        read: the way back from the path of the artifact's model, where that is no QDQ or FakeQuantize model.
        integers: it holds QuantizeLinear and DequantizeLinear, which know 4- and 16-bit integers from opset 21 on.
        simulated: what is rendered is no artifact: it is run for its numbers alone.
        beside: endings of the sidecar files: what takes the place of ``.onnx`` in the model's name.
        compiled: of these endings, those of the files that the target runs, whose size is the result's; where there are
            none, it is that of all files.
        notes: what of the result it could not say the way it is meant to, for the user.
        warns: what of the result, now that its numbers are known, the target refuses or computes otherwise.
        refuses: raises a ModelError for a float model, in the form that the target wants, of which nothing can be
            written this way; called before any data is run.
    """

    render: Callable[[Quantized], ir.Model]
    write: Callable[[Quantized, Path], list[Path]]
    read: Callable[[Path], Quantized] | None = None
    integers: bool = False
    simulated: bool = False
    beside: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    notes: Callable[[Quantized], list[str]] | None = None
    refuses: Callable[[ir.Model], None] | None = None
    warns: Callable[[Quantized], list[str]] | None = None

    def told(self, quantized: Quantized) -> list[str]:
        """What of a result there is to note, see ``notes``."""
        return [] if self.notes is None else self.notes(quantized)

    def warned(self, quantized: Quantized) -> list[str]:
        """What of a result there is to warn of, see ``warns``."""
        return [] if self.warns is None else self.warns(quantized)

    def sidecars(self, path: Path) -> list[Path]:
        """The files written beside a model."""
        return [path.with_name(path.stem + ending) for ending in self.beside]

    def size(self, files: Sequence[Path]) -> int:
        """Bytes of what :attr:`write` has written, as far as the target runs it."""
        run = {file.name for file in files if file.name.endswith(self.compiled)} if self.compiled else set()
        return sum(file.stat().st_size for file in files if not run or file.name in run)
