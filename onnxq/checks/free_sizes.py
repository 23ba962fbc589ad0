"""Sizes that a target wants fixed: what to do about them, and whether the model can have those asked for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.files.onnx_checker import check

__all__ = ["check_sized", "how_to_fix"]


def check_sized(model: ir.Model, shapes: Sequence[str]) -> None:
    """Check a model of which sizes may have been asked for.

    Args:
        model: left as it is.
        shapes: the sizes, see :attr:`onnxq.options.Options.shapes`.

    Raises:
        ModelError: what is wrong with it, and that it may be these sizes.
    """
    try:
        check(model)
    except ModelError as error:
        if not shapes or error.hint:
            raise
        hint = f"If it is valid as it came, it cannot have the sizes asked for (--shape): {', '.join(shapes)}"
        raise ModelError(error.what, where=error.where, hint=hint) from error


def how_to_fix(value: ir.Value) -> str:
    """The flag that gives an input of a model fixed sizes, with sizes to be filled in."""
    sizes = "x".join(str(size) if isinstance(size, int) else f"SIZE{k}" for k, size in enumerate(value.shape or ()))
    shape = f"{value.name}={sizes or 'SIZES'}"
    return f"--shape {shlex.quote(shape)}"
