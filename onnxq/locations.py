"""Where the files of a result go, and where they are found again."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.errors import OptionError, OutputError
from onnxq.file_system import hint_for, is_there
from onnxq.graph.files.origin import spare_files
from onnxq.plugins import names
from onnxq.user_code import split_name

__all__ = [
    "artifact_path",
    "find_artifact",
    "made_folder",
    "require_choice",
    "require_file",
    "require_files",
    "require_folder",
    "require_onnx",
    "require_output",
    "require_several",
    "spare",
]

_ENDING = ".onnx"
_SLASHES = tuple(filter(None, ("/", os.sep, os.altsep)))
_PLURAL = ("data", "statistics")


def _is_folder(output: str | os.PathLike[str], *, several: bool) -> bool:
    """Whether an output names a folder: it is one, or its name has no ending, or a slash at its end.

    Args:
        output: what was given.
        several: it is for several results, and a name like ``out.v1`` is that of a folder unless there is such a file.
    """
    path = Path(output)
    if os.path.isdir(path) or not path.suffix or os.fspath(output).endswith(_SLASHES):
        return True
    return several and path.suffix.lower() != _ENDING and not os.path.exists(path)


def require_several(output: str | os.PathLike[str] | None) -> None:
    """Refuse an output for several results that is not a folder."""
    if output is not None and not _is_folder(output, several=True):
        raise OptionError(f"'{output}' is not a folder", where="output", hint="Several targets need one each")


def _model_of(path: Path, beside: Iterable[str]) -> Path:
    """The model's path, for that of a file of the target beside it: ``net.onnx`` for ``net.tflite``, in any case.

    Args:
        path: of a file, that of the model or another.
        beside: endings of the target's files beside a model, see :attr:`onnxq.format.Format.beside`.
    """
    fitting = (ending for ending in beside if path.name.lower().endswith(ending.lower()))
    ending = "" if path.suffix.lower() == _ENDING else max(fitting, key=len, default="")
    return path.with_name(path.name[: -len(ending)] + _ENDING) if ending else path


def artifact_path(
    output: str | os.PathLike[str], source: Any, backend: str, *, beside: Iterable[str] = (), several: bool = False
) -> Path:
    """The path of a result's ONNX model; sidecar files go beside it, with its stem.

    Args:
        output: the file itself, or one beside it, or a folder; in that it is named ``<model>_<backend>.onnx``.
        source: the float model as it was given.
        backend: name of the target.
        beside: see :func:`_model_of`.
        several: see :func:`_is_folder`.

    Raises:
        OutputError: a file beside it was named, and the model there is the source, which nobody asked to replace.
    """
    if not _is_folder(output, several=several):
        path = _model_of(Path(output), beside)
        given = isinstance(source, (str, os.PathLike)) and os.path.isfile(source) and os.path.isfile(path)
        if given and path != Path(output) and path.samefile(source):
            what = f"this file is the model that is read, and '{output}' is written with a model of the same name"
            raise OutputError(what, where=f"'{path}'", hint="Give another name")
        return path
    stem = Path(source).stem if isinstance(source, (str, os.PathLike)) else "model"
    return Path(output) / f"{stem}_{backend}.onnx"


def find_artifact(output: str | os.PathLike[str], backend: str, *, beside: Iterable[str] = ()) -> Path:
    """The ONNX model that :func:`artifact_path` named.

    Args:
        output: the file itself, or one beside it, or the folder it was written to.
        backend: name of the target.
        beside: see :func:`_model_of`.

    Raises:
        OutputError: there is none, or more than one; files of a target whose name ends like this one's do not count.
    """
    if not os.fspath(output):
        raise OutputError("the name of the artifact is empty", hint="Give a file or a folder; '.' is the current one")
    path = Path(output) if os.path.isdir(output) else _model_of(Path(output), beside)
    if is_there(path, OutputError) and path.is_file():
        return path
    found = sorted(path.glob(f"*_{backend}.onnx"))
    longer = tuple(f"_{name}" for name in names("onnxq.backends") if name.endswith(f"_{backend}"))
    found = [file for file in found if not (longer and file.stem.endswith(longer))]
    if len(found) == 1:
        return found[0]
    what = f"it holds {len(found)} files *_{backend}.onnx"
    if not path.is_dir():
        what = "it is no file that can be read whole" if path.exists() else "there is no such file or folder"
    raise OutputError(what, where=f"'{output}'", hint="Give the path of the .onnx file that onnxq wrote")


@contextlib.contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Make the folder of a file where it is missing, and what it lies in; all of it goes again where the work fails.

    Args:
        path: the file to be.

    Raises:
        OutputError: it cannot be made.
    """
    made = [folder for folder in (path.parent, *path.parent.parents) if not is_there(folder, OutputError)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {error.strerror or error}", where=f"'{path.parent}'") from error
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # something lies in it, so it is to stay
            for folder in made:
                folder.rmdir()
        raise


def spare(*paths: str | os.PathLike[str], beside: Sequence[Path] = (), **given: Any) -> None:
    """Refuse to write a result over what it is made from, before any work.

    Args:
        paths: the files to be.
        beside: those beside them. Where ``paths`` may replace a model in memory, which is whole then, these may not.
        given: what is read, by what it is called: a file, a folder of samples, or a model in memory whose files are
            known. Data in a Python file are named ``"FILE.py:FUNCTION"``. Anything else has no file.

    Raises:
        OutputError: one of the files is read.
    """
    for path, whole in (*((Path(path), True) for path in paths), *((path, False) for path in beside)):
        if not os.path.isfile(path):
            continue
        for word, source in given.items():
            if isinstance(source, ir.Model):
                spare_files(source, path, whole=whole)
            elif isinstance(source, (str, os.PathLike)):
                file = split_name(os.fspath(source))[0]
                among = path.suffix == ".npz" and os.path.isdir(file) and path.parent.samefile(file)
                if among or (os.path.isfile(file) and path.samefile(file)):
                    what = f"{'among ' if among else ''}the {word} that {'are' if word in _PLURAL else 'is'} read"
                    raise OutputError(f"this file is {what}", where=f"'{path}'", hint="Give another name")


def _require_name(output: str | os.PathLike[str]) -> None:
    """Refuse an output that is the empty string, which Python takes for the current folder.

    Raises:
        OutputError: it is.
    """
    if not os.fspath(output):
        raise OutputError("the name is empty", where="output", hint="Give a file or a folder; '.' is the current one")


def require_choice(path: str | os.PathLike[str]) -> None:
    """Refuse a file for a choice of bits that cannot be written, or that is no configuration file: model, data, say.

    Raises:
        OutputError: it cannot, or is none.
    """
    if Path(path).suffix != ".toml":
        hint = "Give a file that ends in .toml"
        raise OutputError("the choice is written as a configuration file", where=f"'{path}'", hint=hint)
    require_file(path, "Give the path of the file to write the choice to")


def require_onnx(path: str | os.PathLike[str], hint: str = "Give NAME.onnx") -> None:
    """Refuse the name of a model's file that has another ending: files beside it may have that one, and its name.

    Raises:
        OutputError: it has.
    """
    suffix = Path(path).suffix
    if suffix and suffix.lower() != _ENDING:
        raise OutputError(f"a model is written, and its name ends in {suffix!r}", where=f"'{path}'", hint=hint)


def require_output(output: str | os.PathLike[str] | None, *, beside: Iterable[str] = (), several: bool = False) -> None:
    """As :func:`require_folder`, for a model: refuse a file that does not end in ``.onnx``, too.

    Args:
        output: a file or a folder, see :func:`artifact_path`.
        beside: endings that stand for the model's.
        several: see :func:`_is_folder`.

    Raises:
        OutputError: see :func:`require_folder` and :func:`require_onnx`.
    """
    if output is not None and not _is_folder(output, several=several):
        require_onnx(_model_of(Path(output), beside), "Give NAME.onnx or a folder")
    require_folder(output, several=several)


def require_folder(output: str | os.PathLike[str] | None, *, several: bool = False) -> None:
    """Refuse an output without a name, or that cannot be written, before any work.

    Folders are made where they are missing, see :func:`made_folder`.

    Args:
        output: a file or a folder, see :func:`artifact_path`.
        several: see :func:`_is_folder`.

    Raises:
        OutputError: it has no name, or the folder takes no files or cannot be made.
    """
    if output is None:
        return
    _require_name(output)
    path = Path(output).absolute()
    is_there(path, OutputError)
    if _is_folder(output, several=several):
        hint = "Give another folder" if several else "Give another folder, or a file NAME.onnx"
        folder = _there(path, hint)
    else:
        folder = path.resolve().parent if path.parent.is_dir() else _there(path.parent, "Give another folder")
    _require_taken(folder, output)


def _there(folder: Path, hint: str) -> Path:
    """A folder, or what is there of the folders that it is to lie in.

    Raises:
        OutputError: a file is in its way; ``hint`` says what to do.
    """
    found = next(one for one in (folder, *folder.parents) if one.exists() or one.is_symlink())
    if not found.is_dir():
        raise OutputError("a file of that name exists, so no folder can be made", where=f"'{found}'", hint=hint)
    return found


def require_file(path: str | os.PathLike[str], hint: str) -> None:
    """Refuse a place that a file cannot be written to, before any work.

    Its folder is made where it is missing, see :func:`made_folder`.

    Args:
        path: of the file; its name need not have an ending.
        hint: what to give, said where the path is a folder.

    Raises:
        OutputError: it has no name, is a folder, or its folder takes no files or cannot be made.
    """
    _require_name(path)
    if (is_there(path, OutputError) and os.path.isdir(path)) or os.fspath(path).endswith(_SLASHES):
        raise OutputError("this is a folder", where=f"'{path}'", hint=hint)
    place = Path(path).absolute()
    there = place.resolve().parent if place.parent.is_dir() else _there(place.parent, "Give another folder")
    _require_taken(there, path)


def require_files(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse places that files of a result cannot be written to, before any work.

    Raises:
        OutputError: see :func:`require_file`.
    """
    for path in paths:
        require_file(path, "Give another folder, or remove it")


def _require_taken(folder: Path, output: str | os.PathLike[str]) -> None:
    """Try to make a file in a folder, which goes again.

    Raises:
        OutputError: it takes none; ``output`` is named.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".onnxq-"):
            pass
    except OSError as error:
        what = f"cannot be written, its folder takes no files: {error.strerror or error}"
        raise OutputError(what, where=f"'{output}'", hint=hint_for(error)) from error
