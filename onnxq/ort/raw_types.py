"""Tensors of types that onnxruntime takes and gives as bytes only: bfloat16 and 8-bit floats, by ml_dtypes."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

__all__ = ["RAW_TYPES", "to_array", "to_value"]

RAW_TYPES: dict[int, Any] = {
    ir.DataType.BFLOAT16.value: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.FLOAT8E4M3FN.value: np.dtype(ml_dtypes.float8_e4m3fn),
    ir.DataType.FLOAT8E4M3FNUZ.value: np.dtype(ml_dtypes.float8_e4m3fnuz),
    ir.DataType.FLOAT8E5M2.value: np.dtype(ml_dtypes.float8_e5m2),
    ir.DataType.FLOAT8E5M2FNUZ.value: np.dtype(ml_dtypes.float8_e5m2fnuz),
}
"""Their numbers in ONNX."""


def to_value(array: NDArray[Any], raw: np.dtype[Any] | None) -> Any:
    """An OrtValue of an array, cast to one of the types above if ``raw`` is given."""
    if raw is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    number = next(number for number, kind in RAW_TYPES.items() if kind == raw)
    held = array.astype(raw, order="C").view(f"u{raw.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(held, number)


def to_array(value: Any) -> Any:
    """The array in an OrtValue, copied."""
    raw = RAW_TYPES.get(value.element_type()) if value.is_tensor() else None
    if raw is None:
        return value.numpy()
    shape = tuple(value.shape())
    size = raw.itemsize * int(np.prod(shape))
    memory = (ctypes.c_uint8 * size).from_address(value.data_ptr()) if size else b""
    return np.frombuffer(memory, raw).reshape(shape).copy()
