"""What to do about sizes that a target wants fixed."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["how_to_fix"]


def how_to_fix(value: ir.Value) -> str:
    """The command that gives an input of a model fixed sizes, with sizes to be filled in."""
    rank = len(value.shape) if value.shape is not None else 0
    sizes = ",".join(str(size) if isinstance(size, int) else f"SIZE{k}" for k, size in enumerate(value.shape or ()))
    tool = "python -m onnxruntime.tools.make_dynamic_shape_fixed"
    return f"{tool} --input_name {value.name} --input_shape {sizes if rank else 'SIZES'} IN.onnx OUT.onnx"
