"""Whether there is a file of a name that a user gave."""

from __future__ import annotations

import os

from onnxq.errors import OnnxqError

__all__ = ["is_there"]


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
