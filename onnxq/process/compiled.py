"""Parts in C, each with NumPy code of equal results beside it."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["compiled"]


def compiled(name: str) -> Any:
    """A C extension; None where it was not built or is switched off by ``ONNXQ_NUMPY_KERNEL=1``.

    Args:
        name: the module's, in full.
    """
    if os.environ.get("ONNXQ_NUMPY_KERNEL") == "1":
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
