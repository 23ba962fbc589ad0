"""Integers and the numbers that they stand for, on the grids of quantizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.flat import TYPES
from onnxq.backends.litert.placed import Grid, RefusedError
from onnxq.graph.values import constant_array
from onnxq.qparams import QParams, dequantize, quantize
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["cast_options", "codes_of", "grid_of", "known_type", "real_of"]


def grid_of(node: ir.Node) -> Grid:
    """The numbers of a QuantizeLinear or DequantizeLinear.

    Raises:
        RefusedError: they are computed, or of blocks.
    """
    scale = constant_array(node.inputs[1])
    zero = constant_array(node.inputs[2]) if len(node.inputs) > 2 else None
    if scale is None:
        raise RefusedError("its scale is computed")
    if node.attributes.get_int("block_size", 0):
        raise RefusedError("TensorFlow Lite has no scales of blocks")
    zero = np.zeros(scale.shape, np.int64) if zero is None else zero
    rank = len(node.inputs[0].shape or ()) if node.inputs[0] is not None else 0
    axis = node.attributes.get_int("axis", 1)
    codes = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    wide = codes is not None and codes.dtype is ir.DataType.INT16
    dtype = ir.DataType.INT16 if wide else ir.DataType.INT8
    return Grid.of(scale, zero, axis % rank if scale.size > 1 and rank else 0, dtype)


def codes_of(array: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """The integers that stand for numbers, on a grid of one scale."""
    return np.asarray(quantize(array, _params(grid)), grid.dtype.numpy())


def real_of(array: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """What integers stand for, in float32."""
    return dequantize(array, _params(grid))


def _params(grid: Grid) -> QParams:
    """The same numbers."""
    scale, zero = np.array(grid.scale, np.float32), np.array(grid.zero_point, np.int64)
    if scale.size == 1:
        return QParams(QuantSpec(bits=grid.bits, symmetric=False), scale.reshape(()), zero.reshape(()))
    return QParams(QuantSpec(bits=grid.bits, granularity=PerChannel(grid.axis)), scale, zero)


def known_type(dtype: ir.DataType | None, name: str) -> ir.DataType:
    """The type of a tensor, by its name.

    Raises:
        RefusedError: it is none that is written.
    """
    if dtype not in TYPES or dtype is None:
        kind = dtype.name.lower() if dtype is not None else "unknown"
        raise RefusedError(f"tensor {name!r} is of the type {kind}, which is not translated")
    return dtype


def cast_options(before: ir.DataType, after: ir.DataType) -> dict[str, str]:
    """What a CAST says of its types."""
    return {"inDataType": TYPES[before], "outDataType": TYPES[after]}
