"""Giving memory back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys

__all__ = ["give_back"]


def give_back() -> None:
    """Free what only cycles hold, and hand free memory back to the system.

    Graphs are full of cycles, which would keep the weights of several layers. The C library of Linux keeps freed pieces
    below 32 MB for later and never merges some of them; elsewhere there is no such call, and nothing is done.
    """
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
