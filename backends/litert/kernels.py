"""Types that TensorFlow Lite computes in, by operator, as the kernels of LiteRT 2.3 have them.

Others end its interpreter with an error, or the process; int8 without a grid, of which ONNX makes sums that wrap
around, they compute as if it had one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxq.backends.litert.placed import RefusedError

__all__ = ["DATA", "require_kernel", "takes_four_bits"]

_BOOL, _INT32, _INT64 = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64
_MOVES = (
    "BROADCAST_TO CAST CONCATENATION GATHER GATHER_ND MIRROR_PAD PAD PADV2 RESHAPE REVERSE_V2 SELECT_V2 STRIDED_SLICE "
    "TILE TRANSPOSE ONE_HOT SCATTER_ND"
)
_COUNTS = (
    "ADD SUB MUL MAXIMUM MINIMUM NEG FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL MEAN SUM REDUCE_MAX REDUCE_MIN "
    "REDUCE_PROD CUMSUM TOPK_V2 DEPTH_TO_SPACE SPACE_TO_DEPTH SPLIT_V"
)
_OF_WIDE = (
    "ABS ADD AVERAGE_POOL_2D BATCH_MATMUL BROADCAST_TO CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEQUANTIZE EXP "
    "FULLY_CONNECTED GATHER GATHER_ND GELU LEAKY_RELU LOGISTIC MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL PAD "
    "PADV2 QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 "
    "SELECT_V2 SOFTMAX SPLIT_V STRIDED_SLICE SUB TANH TILE TRANSPOSE TRANSPOSE_CONV"
)
_ANY_TYPE = frozenset(_MOVES.split())
_OTHERS: Mapping[str, frozenset[ir.DataType]] = {
    **dict.fromkeys(_COUNTS.split(), frozenset({_INT32, _INT64})),
    **dict.fromkeys(["ABS", "SIGN", "POW", "DIV", "ARG_MAX", "ARG_MIN"], frozenset({_INT32})),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL"), frozenset({_BOOL, _INT32, _INT64})),
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "REDUCE_ANY", "REDUCE_ALL"), frozenset({_BOOL})),
}
"""Types beside real numbers, in float or in int8 on a grid; none where an operator is not named."""
_WIDE = frozenset(_OF_WIDE.split())
"""Operators that compute with int16 on a grid, to a step or a few; of others the kernel is off, or there is none."""
DATA: Mapping[str, int] = {"EMBEDDING_LOOKUP": 1, "ONE_HOT": 2, "SCATTER_ND": 1, "SELECT_V2": 1, "TRANSPOSE_CONV": 2}
"""The input that says what an operator computes in, where it is not the first."""
_MOST_AXES = {"PAD": 5, "PADV2": 5, "BATCH_MATMUL": 5}


def takes_four_bits(kind: str, weight: Sequence[int]) -> bool:
    """Whether an operator takes weights of int4, two in a byte.

    XNNPACK multiplies rows of an even number of them, and the lookup of odd rows is off.

    Args:
        kind: of the operator.
        weight: shape of the weights.
    """
    even = weight[-1] % 2 == 0
    return kind in ("CONV_2D", "DEPTHWISE_CONV_2D") or (kind in ("FULLY_CONNECTED", "EMBEDDING_LOOKUP") and even)


def require_kernel(kind: str, dtype: ir.DataType, shape: Sequence[int], *, on_grid: bool) -> None:
    """See that an operator can be computed.

    Args:
        kind: of the operator.
        dtype: of what it computes with.
        shape: of that.
        on_grid: whether that stands for real numbers.

    Raises:
        RefusedError: LiteRT has no kernel for it.
    """
    if len(shape) > _MOST_AXES.get(kind, len(shape)):
        raise RefusedError(f"TensorFlow Lite's {kind} has {_MOST_AXES[kind]} axes at most")
    if 0 in shape and kind not in _ANY_TYPE:
        raise RefusedError("a tensor that it reads has no elements")
    if on_grid and dtype is ir.DataType.INT16 and kind not in _WIDE:
        raise RefusedError(f"TensorFlow Lite has no {kind} of int16")
    real = dtype is ir.DataType.FLOAT or on_grid
    if dtype in (ir.DataType.FLOAT16, ir.DataType.DOUBLE) and kind not in ("CAST", "RESHAPE"):
        raise RefusedError(f"TensorFlow Lite has no {kind} of {dtype.name.lower()}")
    if not real and kind not in _ANY_TYPE and dtype not in _OTHERS.get(kind, frozenset()):
        raise RefusedError(f"TensorFlow Lite has no {kind} of {dtype.name.lower()}")
