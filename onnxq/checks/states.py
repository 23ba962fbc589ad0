"""Inputs that carry a state from one run to the next: what the model gives back is fed to it again."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["states"]


def states(model: ir.Model) -> dict[str, bool]:
    """Inputs beside others that may be states, each of the type and shape of an output; whether its name says so too.

    ``h`` and ``hn``, ``state`` and ``state_out`` are one by their names: at least half of the shorter is in common.
    """
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    found: dict[str, bool] = {}
    if len(inputs) > 1:
        for value in inputs:
            outputs = [output for output in model.graph.outputs if _alike(value, output)]
            named = any(_same_name(value.name or "", output.name or "") for output in outputs)
            if outputs and (named or any(value.shape == output.shape for output in outputs)):
                found[value.name or ""] = named
    return found


def _alike(value: ir.Value, output: ir.Value) -> bool:
    """Whether an output may be fed to an input again, as far as types and shapes are known."""
    if value is output or value.dtype is not output.dtype or value.shape is None or not len(value.shape):
        return False
    if output.shape is None:
        return True
    pairs = list(zip(value.shape, output.shape, strict=False))
    return len(value.shape) == len(output.shape) and all(
        a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
    )


def _same_name(a: str, b: str) -> bool:
    shorter = min(len(a), len(b))
    common = next((k for k in range(shorter) if a[k] != b[k]), shorter)
    return 2 * common >= shorter > 0
