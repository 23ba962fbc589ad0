"""One search at a time in a folder: a lock on a file in it, which ends with the process however that ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from onnxq.errors import OptionError

__all__ = ["LOCK", "claim", "claiming", "release"]

LOCK = ".lock"
_held: ContextVar[list[IO[bytes]] | None] = ContextVar("held", default=None)

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def claiming(search: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """A function that gives back at its end, however it ends, the folders that it has claimed."""

    @wraps(search)
    def alone(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with _claims():
            return search(*args, **kwargs)

    return alone


def claim(folder: Path) -> None:
    """Have a folder alone until the search ends that asks for it; of no effect outside of one.

    Where the file system knows no locks, nobody is kept out.

    Args:
        folder: is there.

    Raises:
        OptionError: another search is at work there, of this process or another one.
        OSError: nothing can be written there.
    """
    held = _held.get()
    if held is None:
        return
    file = open(folder / LOCK, "ab")  # noqa: SIM115  # closed by _claims
    held.append(file)
    if not _lock(file):
        raise OptionError(
            "another search is at work there",
            where=str(folder),
            hint="Wait until it has ended, or give another output or --resume-dir",
        )


@contextmanager
def _claims() -> Iterator[None]:
    """What is claimed within is given back at the end."""
    held: list[IO[bytes]] = []
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        release(held)


def release(held: list[IO[bytes]] | None = None) -> None:
    """Give back what is claimed: a folder is removed without its lock."""
    for file in held if held is not None else _held.get() or []:
        file.close()


def _lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; whether nobody else has."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return True
