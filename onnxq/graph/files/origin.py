"""Which files a model was read from: they travel with its graph, and no result is written over them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from onnxq.errors import OutputError

__all__ = ["files_of", "note_files", "spare_files"]

_KEY = "onnxq.files"


def note_files(model: ir.Model, files: Iterable[Path]) -> None:
    """Note that a model was read from files: its own, and those that its tensors lie in.

    Args:
        model: changed in place; its clones, and what is made of it, know the files too.
        files: added to what is known already.
    """
    model.graph.meta[_KEY] = files_of(model) | {file.resolve() for file in files}


def files_of(model: ir.Model) -> frozenset[Path]:
    """The files that a model, or what it was made of, was read from; links are followed."""
    found: frozenset[Path] = model.graph.meta.get(_KEY, frozenset())
    return found


def spare_files(model: ir.Model, target: Path) -> None:
    """Refuse to write over a file that a model was read from.

    Args:
        model: what is written, or what it is made of.
        target: the file to be; a link is followed.

    Raises:
        OutputError: it is one of them.
    """
    if target.is_file() and target.resolve() in files_of(model):
        raise OutputError("this file belongs to the model that is read", where=f"'{target}'", hint="Give another name")
