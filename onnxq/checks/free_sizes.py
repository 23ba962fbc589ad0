"""What to do about sizes that a target wants fixed."""

from __future__ import annotations

import shlex

import onnx_ir as ir

__all__ = ["how_to_fix"]


def how_to_fix(value: ir.Value) -> str:
    """The flag that gives an input of a model fixed sizes, with sizes to be filled in."""
    sizes = "x".join(str(size) if isinstance(size, int) else f"SIZE{k}" for k, size in enumerate(value.shape or ()))
    shape = f"{value.name}={sizes or 'SIZES'}"
    return f"--shape {shlex.quote(shape)}"
