"""Giving memory back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys

__all__ = ["give_back", "trim"]


def give_back() -> None:
    """Free what only cycles hold, and :func:`trim`. Graphs are full of cycles, which would keep weights of layers."""
    gc.collect()
    trim()


def trim() -> None:
    """Hand free memory back to the system.

    The C library of Linux keeps freed pieces below 32 MB for later and never merges some of them: those of a session
    that is gone are of little use to the next one. Elsewhere there is no such call, and nothing is done.
    """
    if sys.platform == "linux":
        call = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if call is not None:
            call(0)
