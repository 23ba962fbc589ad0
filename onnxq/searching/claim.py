"""One search at a time in a folder: a lock on a file in it.

It ends with the search, or with a killed process and the workers that this forked.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from onnxq.errors import OptionError

__all__ = ["LOCK", "claim", "claiming", "remove_lock"]

LOCK = ".lock"
_TRIES = 10


@dataclass
class _Held:
    """What a search has claimed: open files, and the process that it runs in."""

    files: list[IO[bytes]] = field(default_factory=list)
    process: int = field(default_factory=os.getpid)


_held: ContextVar[_Held | None] = ContextVar("held", default=None)

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def claiming(search: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """A function that gives back at its end, however it ends, the folders that it has claimed.

    After Ctrl-C, the `KeyboardInterrupt` that it raises says what folder the search goes on from.
    """

    @wraps(search)
    def alone(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with _claims() as held:
            try:
                return search(*args, **kwargs)
            except KeyboardInterrupt as error:
                if not held.files:
                    raise
                folder = os.path.dirname(held.files[0].name)
                told = f"what was found is in '{folder}': the same command goes on from it"
                raise KeyboardInterrupt(told) from error

    return alone


def claim(folder: Path) -> None:
    """Have a folder alone until the search ends that asks for it; outside of one, it is only made.

    Where the file system knows no locks, nobody is kept out.

    Args:
        folder: made if it is missing.

    Raises:
        OptionError: another search is at work there, of this process or another one.
        OSError: nothing can be written there.
    """
    held, path = _held.get(), folder / LOCK
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # another search has just ended, and removed the file or the folder
            folder.mkdir(parents=True, exist_ok=True)
            if held is None:
                return
            file = open(path, "ab")  # noqa: SIM115  # closed by _release
            held.files.append(file)
            if not _lock(file):
                raise OptionError(
                    "another search is at work there",
                    where=str(folder),
                    hint="Wait until it has ended, or give another output or --resume-dir",
                )
            if sys.platform == "win32" or os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def remove_lock(folder: Path) -> None:
    """Give back what is claimed, a folder without its lock: nobody can hold one on a file that is gone.

    Raises:
        OSError: it cannot be removed, as on Windows while another search looks at it.
    """
    held = _held.get()
    if sys.platform == "win32":  # what is open cannot be removed there
        _release(held)
    try:
        (folder / LOCK).unlink(missing_ok=True)
    finally:
        _release(held)


@contextmanager
def _claims() -> Iterator[_Held]:
    """What is claimed within is given back at the end."""
    held = _Held()
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)
        _release(held)


def _release(held: _Held | None) -> None:
    """Give back what is claimed; a forked worker, which shares the locks, closes its files only."""
    while held is not None and held.files:
        file = held.files.pop()
        if held.process == os.getpid():
            _unlock(file)
        file.close()


def _lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; whether nobody else has."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:  # of other numbers: no locks here
            return error.errno not in (errno.EACCES, errno.EDEADLK)
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return True


def _unlock(file: IO[bytes]) -> None:
    """Unlock a file that forked workers may have open as well; on Windows there are none, and closing does it."""
    if sys.platform != "win32":
        import fcntl

        with suppress(OSError):  # no locks here
            fcntl.flock(file, fcntl.LOCK_UN)
