"""Where the files of a result go, and where they are found again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from onnxq.errors import OutputError
from onnxq.plugins import names
from onnxq.writing import hint_for

__all__ = ["artifact_path", "find_artifact", "is_folder", "require_folder"]


def is_folder(output: str | os.PathLike[str]) -> bool:
    """Whether an output names a folder: it is one, or its name has no ending."""
    path = Path(output)
    return path.is_dir() or not path.suffix


def artifact_path(output: str | os.PathLike[str], source: Any, backend: str) -> Path:
    """The path of a result's ONNX model; sidecar files go beside it, with its stem.

    Args:
        output: the file itself, or a folder; in a folder the file is named ``<model>_<backend>.onnx``.
        source: the float model as it was given.
        backend: name of the target.
    """
    if not is_folder(output):
        return Path(output)
    stem = Path(source).stem if isinstance(source, (str, os.PathLike)) else "model"
    return Path(output) / f"{stem}_{backend}.onnx"


def find_artifact(output: str | os.PathLike[str], backend: str) -> Path:
    """The ONNX model that :func:`artifact_path` named.

    Args:
        output: the file itself, or the folder it was written to.
        backend: name of the target.

    Raises:
        OutputError: there is none, or more than one; files of a target whose name ends like this one's do not count.
    """
    path = Path(output)
    if path.is_file():
        return path
    found = sorted(path.glob(f"*_{backend}.onnx"))
    longer = tuple(f"_{name}" for name in names("onnxq.backends") if name.endswith(f"_{backend}"))
    found = [file for file in found if not (longer and file.stem.endswith(longer))]
    if len(found) == 1:
        return found[0]
    what = "there is no such file or folder" if not path.is_dir() else f"it holds {len(found)} files *_{backend}.onnx"
    raise OutputError(what, where=f"'{output}'", hint="Give the path of the .onnx file that onnxq wrote")


def require_folder(output: str | os.PathLike[str] | None) -> None:
    """Refuse an output whose parent folder is missing or takes no files, before any work.

    Raises:
        OutputError: it is, or does not.
    """
    if output is None:
        return
    path = Path(output).absolute()
    if not path.parent.is_dir():
        raise OutputError("the folder does not exist", where=str(Path(output).parent), hint="Create it first")
    folder = path if path.is_dir() else path.resolve().parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".onnxq-"):
            pass
    except OSError as error:
        what = f"cannot be written, its folder takes no files: {error.strerror or error}"
        raise OutputError(what, where=f"'{output}'", hint=hint_for(error)) from error
