"""Tensors without data files behind them, and packing integers as runtimes want them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.unmapped import read
from onnxq.graph.widened import Widened

__all__ = ["in_memory", "pack", "packed_tensor"]

_PACKED = {
    (2, True): ir.DataType.INT2,
    (2, False): ir.DataType.UINT2,
    (4, True): ir.DataType.INT4,
    (4, False): ir.DataType.UINT4,
}
"""Bits and whether there is a sign → type."""


def in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same tensor without a data file behind it."""
    if not isinstance(tensor, (ir.ExternalTensor, Widened)):
        return tensor
    if isinstance(tensor, ir.ExternalTensor) and tensor.dtype in _PACKED.values():
        with open(tensor.path, "rb") as file:
            file.seek(tensor.offset or 0)
            raw = np.fromfile(file, np.uint8, tensor.nbytes)
        return ir.PackedTensor(raw, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)
    return ir.Tensor(read(tensor), dtype=tensor.dtype, name=tensor.name)


def pack(codes: NDArray[np.integer], bits: int = 4) -> NDArray[np.uint8]:
    """Integers of 2, 4 or 8 bits, those of a byte along the last axis, the first lowest; an end is filled up with 0.

    Args:
        codes: int8 or uint8, (..., n).
        bits: of each.

    Returns:
        (..., n * bits / 8), rounded up.
    """
    each = 8 // bits
    whole = np.ascontiguousarray(codes).view(np.uint8)
    if short := -whole.shape[-1] % each:
        whole = np.concatenate([whole, np.zeros((*whole.shape[:-1], short), np.uint8)], axis=-1)
    lowest = np.uint8((1 << bits) - 1)
    packed: NDArray[np.uint8] = whole[..., 0::each] & lowest
    for place in range(1, each):
        packed |= (whole[..., place::each] & lowest) << np.uint8(bits * place)
    return packed


def packed_tensor(codes: NDArray[np.int8] | NDArray[np.uint8], bits: int) -> ir.TensorProtocol:
    """Integers as a tensor of type int2, uint2, int4, uint4, int8 or uint8.

    Args:
        codes: int8 or uint8.
        bits: 2, 4 or 8.
    """
    if bits == 8:
        return ir.Tensor(np.ascontiguousarray(codes))
    kind = _PACKED[bits, codes.dtype == np.int8]
    return ir.PackedTensor(pack(codes.reshape(-1), bits), kind, shape=ir.Shape(codes.shape))
