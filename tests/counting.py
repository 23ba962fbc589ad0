"""Work in lines of Python: a number that no other process, collection of cycles or number of cores changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["lines_of"]


def lines_of(run: Callable[[], object], *folders: str) -> int:
    """How many lines of the files in these folders a call runs in this thread.

    Args:
        run: what is called.
        folders: parts of paths, as ``onnxq/torch/``.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        path = frame.f_code.co_filename.replace("\\", "/")
        if not any(folder in path for folder in folders):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count
