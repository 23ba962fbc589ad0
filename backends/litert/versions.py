"""Versions of TensorFlow Lite's operators, by which an older runtime tells that it lacks a form of one.

After ``tensorflow/lite/tools/versioning/op_version.cc`` (TensorFlow 2.20), for the types and forms that are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

__all__ = ["version"]

_NAMES = (
    "ABS ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL CONCATENATION DEPTH_TO_SPACE DEQUANTIZE EQUAL EXP GATHER "
    "GELU GREATER GREATER_EQUAL L2_NORMALIZATION LESS LESS_EQUAL LOG LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN "
    "MINIMUM MIRROR_PAD MUL NOT_EQUAL PAD PADV2 REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 RESIZE_BILINEAR "
    "RESIZE_NEAREST_NEIGHBOR RSQRT SOFTMAX SPACE_TO_DEPTH SPLIT_V SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH "
    "TOPK_V2 TRANSPOSE"
)
_SECOND = frozenset(_NAMES.split())
"""Operators whose version 2 has int8."""
_THIRD = frozenset({"BROADCAST_TO", "CONV_2D", "DEPTHWISE_CONV_2D", "REVERSE_V2", "TILE"})
"""Operators whose version 3 has it."""
_WIDE: Mapping[str, int] = {
    **dict.fromkeys(("ABS", "AVERAGE_POOL_2D", "BATCH_MATMUL", "BROADCAST_TO", "CONCATENATION", "DEQUANTIZE"), 3),
    **dict.fromkeys(("GATHER_ND", "LOGISTIC", "MAX_POOL_2D", "MEAN", "MIRROR_PAD", "PAD", "PADV2", "REDUCE_MAX"), 3),
    **dict.fromkeys(("ADD", "REDUCE_MIN", "RELU", "RELU6", "SOFTMAX", "TANH"), 3),
    **dict.fromkeys(("CONV_2D", "GATHER", "MAXIMUM", "MINIMUM", "MUL"), 4),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), 4),
    **dict.fromkeys(("DEPTHWISE_CONV_2D", "SUB", "TRANSPOSE"), 5),
    **dict.fromkeys(("EXP", "LEAKY_RELU"), 2),
    "FULLY_CONNECTED": 7,
}
"""Operators that have int16 on a grid from this version on, sums those of any scales."""
_FOUR_BITS: Mapping[str, int] = {
    "CONV_2D": 7,
    "DEPTHWISE_CONV_2D": 6,
    "EMBEDDING_LOOKUP": 4,
    "FULLY_CONNECTED": 10,
}
"""Operators that have weights of int4 from this version on; of DEPTHWISE_CONV_2D LiteRT 2.3 has no 7, where it is."""
_FIVE_AXES = {"TRANSPOSE": 4, "STRIDED_SLICE": 4, "PAD": 4, "PADV2": 4}
"""Operators that have more than four axes from this version on."""
_BROADCAST = {"SUB": 3, "DIV": 2, "MAXIMUM": 3, "MINIMUM": 3}
"""Operators that broadcast more than four axes from this version on."""
_INT64 = {"ADD": 4, "SUB": 4, "MUL": 5}
"""Arithmetic that has int64 from this version on."""
_MOST_AXES, _TRANSPOSE_AXES = 4, 5


def version(kind: str, types: Sequence[ir.DataType | None], rank: int, options: Mapping[str, Any]) -> int:
    """The version that an operator is of.

    Args:
        kind: its name in the schema.
        types: of its inputs, None for one that is left out; of a QUANTIZE of what it makes, too.
        rank: the most axes that an input has.
        options: what it says.
    """
    first = next((dtype for dtype in (types[1:] if kind == "TRANSPOSE_CONV" else types) if dtype is not None), None)
    if kind == "QUANTIZE":
        return 2 if types[-1] is ir.DataType.INT16 else 1
    if ir.DataType.INT4 in types:
        return _FOUR_BITS[kind]
    least = _WIDE.get(kind, 1) if first is ir.DataType.INT16 else 1
    return max(_by_form(kind, types, rank, options, first), least)


def _by_form(
    kind: str,
    types: Sequence[ir.DataType | None],
    rank: int,
    options: Mapping[str, Any],
    first: ir.DataType | None,
) -> int:
    """The same without regard to int16."""
    eight = first is ir.DataType.INT8
    if kind == "FULLY_CONNECTED":
        return 5 if options.get("keepNumDims") else 4 if eight else 1
    if kind == "TRANSPOSE_CONV":
        return 3 if len(types) > 3 else 2 if eight else 1
    if kind == "CONV_2D" and options.get("grouped"):
        return 6
    if kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        aligned = kind == "RESIZE_NEAREST_NEIGHBOR" and options.get("alignCorners")
        return 3 if options.get("halfPixelCenters") or aligned else 2 if eight else 1
    if kind == "DEPTHWISE_CONV_2D" and not eight:
        return 2 if max(options["dilationWFactor"], options["dilationHFactor"]) > 1 else 1
    if kind == "TRANSPOSE" and rank > _TRANSPOSE_AXES:
        return 6
    if rank > _MOST_AXES and kind in _FIVE_AXES | _BROADCAST:
        return (_FIVE_AXES | _BROADCAST)[kind]
    if first is ir.DataType.INT64 and kind in _INT64:
        return _INT64[kind]
    if kind == "CAST":
        return 3 if eight else 1
    if kind == "GATHER" and options.get("batchDims"):
        return 5
    if kind == "BROADCAST_TO":
        return 3 if eight else 2
    if not eight:
        return 1
    return 3 if kind in _THIRD else 2 if kind in _SECOND else 1
