"""The file system: whether a file is there, files written as a whole, and what to say where that could not be done."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnxq.errors import ExecutionError, OnnxqError, OutputError

__all__ = [
    "cause_outside",
    "hint_for",
    "is_full",
    "is_there",
    "keep_mode",
    "temporary_beside",
    "whole_file",
    "write_bytes",
    "write_text",
]

_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))  # Windows knows no quota
_REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENAMETOOLONG,
)
_SHORT = "requested and"
"""Of numpy, which gives no number of an error where not all of an array could be written."""


def is_there(path: str | os.PathLike[str], error: type[OnnxqError]) -> bool:
    """Whether there is a file or a folder.

    Args:
        path: its name; links are followed.
        error: the class of the error.

    Raises:
        OnnxqError: of class ``error``: that cannot be told. The name is too long or holds a zero byte, links go round
            in a circle, or a folder on the way may not be read.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as cause:
        what = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
        raise error(f"cannot be looked at: {what}", where=f"'{os.fspath(path)}'") from cause
    return True


def is_full(error: OSError) -> bool:
    """Whether a disk, or what one may take of it, is used up."""
    return error.errno in _FULL


def hint_for(error: OSError) -> str:
    """A hint by the cause: space helps against a full disk alone."""
    return "Free some space, or write to another folder" if is_full(error) else "Write to another folder"


def cause_outside(error: BaseException | None) -> OnnxqError | None:
    """The error to tell of in place of one that the machine causes: a full disk, no right, no memory, no folder.

    Args:
        error: what was raised, by onnxq itself or by a library.

    Returns:
        ``None`` where the cause is none of these.
    """
    while error is not None:
        if isinstance(error, MemoryError):
            return ExecutionError("there is not enough memory", hint="Use fewer samples, or a machine with more of it")
        if isinstance(error, FileNotFoundError) and error.filename is None and _without_folder():
            return OutputError("the current folder is gone", hint="Change to another one")
        if isinstance(error, OSError):
            full = is_full(error) or (error.errno is None and _SHORT in str(error))
            if full or error.errno in _REFUSED or "usable temporary directory" in str(error):
                return _outside(error, full=full)
        error = error.__cause__ or error.__context__
    return None


def _without_folder() -> bool:
    """Whether the folder that the process works in was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _outside(error: OSError, *, full: bool) -> OutputError:
    where = None if error.filename is None else f"'{os.fsdecode(error.filename)}'"
    what = error.strerror or str(error)
    if not full:
        return OutputError(what, where=where)
    places = f"the output, or of temporary files in '{_temporary()}' (TMPDIR names another folder)"
    return OutputError(what, where=where, hint=f"Free some space on the disk of {places}")


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return os.environ.get("TMPDIR", "/tmp")


def temporary_beside(path: Path) -> Path:
    """A name for what will take the place of a file, in its folder: hidden, free, and no longer than any allowed."""
    return path.with_name(f".onnxq-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def keep_mode(existing: Path, temporary: Path) -> None:
    """Give a new file the permissions of the one that it will replace."""
    with contextlib.suppress(OSError):
        os.chmod(temporary, existing.stat().st_mode & 0o7777)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file that appears complete or not at all, behind links; what was there stays until then, its permissions on.

    Args:
        path: of the file.

    Yields:
        Where to write it.

    Raises:
        OutputError: it cannot be written.
    """
    target = Path(path).resolve()
    temporary = temporary_beside(target)
    try:
        yield temporary
        keep_mode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise OutputError(what, where=f"'{os.fspath(path)}'", hint=hint_for(error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file of text, see :func:`whole_file`.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file of bytes, see :func:`whole_file`.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
    return Path(path)
