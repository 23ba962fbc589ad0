"""Row by row reading of ``.npy`` and ``.npz`` files, so that memory does not depend on the number of rows."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from onnxq.errors import DataError

__all__ = ["BROKEN", "RowArray", "load_feed", "open_npy", "open_npz"]

_SKIP_BYTES = 1 << 20
BROKEN = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    TypeError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    OverflowError,
    LookupError,
    TokenError,
)
"""What numpy and zipfile raise on damage; numpy reads headers with Python's tokenizer."""
_HINT = "Write it again with numpy.save or numpy.savez, without Python objects."


@dataclass(frozen=True)
class RowArray:
    """An array in a file whose first axis is read piece by piece.

    Attributes:
        path: the ``.npy`` or ``.npz`` file.
        member: name within the ``.npz`` file, None for ``.npy``.
        shape: the whole array's.
        dtype: of its elements.
        fortran: the file has the last axis outermost; such an array is read at once.
    """

    path: Path
    member: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    def rows(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        """The rows at ``indices``, which must be ascending; the array itself every time if it has no axes.

        Raises:
            DataError: the file is damaged or shorter than its header says.
        """
        try:
            if not self.shape or self.fortran:
                whole = self._whole()
                yield from (whole if not self.shape else np.ascontiguousarray(whole[i]) for i in indices)
                return
            with _opened(self.path, self.member) as stream:
                _header(stream)
                row, at = np.empty(self.shape[1:], self.dtype).nbytes, 0
                for index in indices:
                    _skip(stream, (index - at) * row)
                    at = index + 1
                    # one buffer a row: the consumer may keep it
                    values = np.empty(self.shape[1:], self.dtype)
                    _fill(stream, values)
                    yield values
        except BROKEN as error:
            raise _damaged(self.path, error) from error

    def _whole(self) -> np.ndarray:
        with _opened(self.path, self.member) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def open_npy(path: Path) -> RowArray:
    """The array of a ``.npy`` file, of which only the header is read.

    Raises:
        DataError: the file is unreadable or holds Python objects.
    """
    return _describe(path, None)


def open_npz(path: Path) -> dict[str, RowArray]:
    """The arrays of a ``.npz`` file by name, of which only the headers are read.

    Raises:
        DataError: the file is unreadable or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
    except BROKEN as error:
        raise _damaged(path, error) from error
    return {name.removesuffix(".npy"): _describe(path, name) for name in members}


def load_feed(path: Path) -> dict[str, np.ndarray] | np.ndarray:
    """All of a small file: the arrays of a ``.npz`` by name, or the array of a ``.npy``.

    Raises:
        DataError: the file is unreadable or holds Python objects.
    """
    try:
        _require_magic(path)
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except BROKEN as error:
        raise _damaged(path, error) from error


def _require_magic(path: Path) -> None:
    """Refuse a file that numpy would take for pickled objects.

    Raises:
        ValueError: it begins neither as a ``.npy`` nor as a ``.npz`` file does.
        OSError: it cannot be read.
    """
    with open(path, "rb") as stream:
        first = stream.read(len(np.lib.format.MAGIC_PREFIX))
    if not first.startswith((np.lib.format.MAGIC_PREFIX, b"PK")):
        raise ValueError(f"it begins with {first!r}, as no such file does" if first else "it is empty")


def _describe(path: Path, member: str | None) -> RowArray:
    try:
        with _opened(path, member) as stream:
            shape, fortran, dtype = _header(stream)
    except BROKEN as error:
        raise _damaged(path, error) from error
    if dtype.hasobject:
        raise DataError("holds Python objects, which are not read", where=_place(path, member), hint=_HINT)
    return RowArray(path, member, shape, dtype, fortran and len(shape) > 1)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"numpy file format {version} is not supported")


def _opened(path: Path, member: str | None) -> AbstractContextManager[IO[bytes]]:
    if member is None:
        return open(path, "rb")
    archive = zipfile.ZipFile(path)
    return _Member(archive, archive.open(member))


class _Member(AbstractContextManager[IO[bytes]]):
    """An open member that closes its archive as well."""

    def __init__(self, archive: zipfile.ZipFile, stream: IO[bytes]) -> None:
        self._archive, self._stream = archive, stream

    def __enter__(self) -> IO[bytes]:
        return self._stream

    def __exit__(self, *exc: object) -> None:
        self._stream.close()
        self._archive.close()


def _skip(stream: IO[bytes], count: int) -> None:
    if count and isinstance(stream, io.BufferedReader):
        stream.seek(count, os.SEEK_CUR)
        return
    while count > 0:
        piece = stream.read(min(count, _SKIP_BYTES))
        if not piece:
            raise EOFError("the file ends early")
        count -= len(piece)


def _fill(stream: IO[bytes], values: np.ndarray) -> None:
    """Read exactly ``values.nbytes`` bytes into ``values``."""
    if not values.nbytes:
        return
    view = memoryview(values.reshape(-1).view(np.uint8).data)
    at = 0
    while at < len(view):
        piece = stream.read(min(len(view) - at, _SKIP_BYTES))
        if not piece:
            raise EOFError("the file ends early")
        view[at : at + len(piece)] = piece
        at += len(piece)


def _place(path: Path, member: str | None) -> str:
    return f"{path}" if member is None else f"{path}, array {member.removesuffix('.npy')!r}"


def _damaged(path: Path, error: BaseException) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError("does not exist", where=str(path))
    if isinstance(error, PermissionError):
        return DataError("cannot be read: permission denied", where=str(path))
    return DataError(f"is not a readable numpy file ({error})", where=str(path), hint=_HINT)
