"""Which files a model was read from: they travel with its graph, and no result is written over what it still reads.

A result may replace its model, whole: that is what a user asks for who gives it the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from onnxq.errors import OutputError

__all__ = ["files_of", "note_files", "spare_files"]

_KEY, _OWN = "onnxq.files", "onnxq.file"


def note_files(model: ir.Model, files: Iterable[Path], *, own: Path | None = None) -> None:
    """Note that a model was read from files.

    Args:
        model: changed in place; its clones, and what is made of it, know the files too.
        files: those that its tensors lie in, added to what is known already.
        own: the model's own.
    """
    model.graph.meta[_KEY] = files_of(model) | {file.resolve() for file in files}
    if own is not None:
        model.graph.meta[_OWN] = own.resolve()


def files_of(model: ir.Model) -> frozenset[Path]:
    """The files that the tensors of a model, or of what it was made of, lie in; links are followed."""
    found: frozenset[Path] = model.graph.meta.get(_KEY, frozenset())
    return found


def spare_files(model: ir.Model, *targets: Path, whole: bool = True) -> None:
    """Refuse to write over the files of a model, but for a result that replaces the model.

    Args:
        model: what is written, or what it is made of.
        targets: the files to be, written together; links are followed.
        whole: they are a model, and may replace this one; else they are what lies beside one.

    Raises:
        OutputError: one of them belongs to the model, and none replaces it.
    """
    there = [target for target in targets if os.path.isfile(target)]
    own = model.graph.meta.get(_OWN)
    if whole and any(target.resolve() == own for target in there):
        return
    for target in there:
        if target.resolve() in files_of(model) or target.resolve() == own:
            raise OutputError(
                "this file belongs to the model that is read", where=f"'{target}'", hint="Give another name"
            )
