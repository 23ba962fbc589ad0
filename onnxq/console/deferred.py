"""Libraries that are loaded when something in them is used, not when they are imported.

onnx-ir imports sympy, which takes a quarter of a second, for arithmetic with names of dimensions; most runs have none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

__all__ = ["defer_imports"]

_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
"""The second reads names of sympy while it is imported. A version without it loads sympy at once, and works as well."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _DEFERRED else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Have them loaded at their first use, in this whole process; for programs, not for libraries."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
