"""What nodes say in attributes or constant inputs, as Python numbers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

__all__ = ["DTYPES", "Inputs", "at", "dtype_of", "floats", "integers", "ints", "number"]

Inputs = Sequence[torch.Tensor | None]

DTYPES: dict[ir.DataType, torch.dtype] = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.UINT16: torch.uint16,
    ir.DataType.UINT32: torch.uint32,
    ir.DataType.UINT64: torch.uint64,
}
"""Element types that torch has."""


def at(inputs: Inputs, index: int) -> torch.Tensor | None:
    """An input, or None where it is left out."""
    return inputs[index] if index < len(inputs) else None


def ints(node: ir.Node, name: str, default: Sequence[int]) -> list[int]:
    """An attribute of integers."""
    given = node.attributes.get_ints(name, None)
    return list(default) if given is None else list(given)


def floats(node: ir.Node, name: str, default: Sequence[float]) -> list[float]:
    """An attribute of floats."""
    given = node.attributes.get_floats(name, None)
    return list(default) if given is None else list(given)


def number(node: ir.Node, name: str, default: float) -> float:
    """A float attribute."""
    return float(node.attributes.get_float(name, default))


def integers(node: ir.Node, inputs: Inputs, index: int, name: str) -> list[int] | None:
    """Integers that newer operator sets take as an input and older ones as an attribute; None where left out."""
    tensor = at(inputs, index)
    if tensor is not None:
        return [int(n) for n in tensor.reshape(-1).tolist()]
    given = node.attributes.get_ints(name, None)
    return None if given is None else list(given)


def dtype_of(code: int) -> torch.dtype:
    """The torch type of an ONNX type number."""
    return DTYPES[ir.DataType(code)]
