"""What to do about a file that could not be written."""

from __future__ import annotations

import errno

__all__ = ["hint_for", "is_full"]

_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))  # Windows knows no quota


def is_full(error: OSError) -> bool:
    """Whether a disk, or what one may take of it, is used up."""
    return error.errno in _FULL


def hint_for(error: OSError) -> str:
    """A hint by the cause: space helps against a full disk alone."""
    return "Free some space, or write to another folder" if is_full(error) else "Write to another folder"
