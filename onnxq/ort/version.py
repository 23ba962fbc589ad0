"""Which onnxruntime is installed: some of its operators came later than the oldest version that is supported."""

from __future__ import annotations

import onnxruntime

__all__ = ["at_least", "installed"]


def installed() -> str:
    """The version of onnxruntime, as it says itself."""
    return str(onnxruntime.__version__)


def at_least(major: int, minor: int) -> bool:
    """Whether the onnxruntime that is installed is of this version or a later one."""
    parts = installed().split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit()) >= (major, minor)
