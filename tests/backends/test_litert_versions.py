"""Versions of TensorFlow Lite's operators: as ``op_version.cc`` of TensorFlow 2.20 has them."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from onnxq.backends.litert.versions import version

_FLOAT, _INT8, _INT16 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.INT16


@pytest.mark.parametrize(
    ("kind", "dtype", "options", "number"),
    [
        ("CONV_2D", _FLOAT, {}, 1),
        ("CONV_2D", _INT8, {}, 3),
        ("CONV_2D", _FLOAT, {"grouped": True}, 6),
        ("ADD", _INT8, {}, 2),
        ("GATHER", _INT8, {}, 2),
        ("GATHER", _FLOAT, {"batchDims": 2}, 5),
        ("FULLY_CONNECTED", _INT8, {}, 4),
        ("FULLY_CONNECTED", _INT8, {"keepNumDims": True}, 5),
        ("RESIZE_BILINEAR", _INT8, {}, 2),
        ("RESIZE_BILINEAR", _INT8, {"halfPixelCenters": True}, 3),
        ("RESIZE_BILINEAR", _INT16, {"halfPixelCenters": True}, 4),
        ("ADD", _INT16, {}, 3),
        ("SUB", _INT16, {}, 5),
        ("GATHER", _INT16, {}, 4),
        ("GATHER", _INT16, {"batchDims": 2}, 5),
        ("FULLY_CONNECTED", _INT16, {"keepNumDims": True}, 7),
        ("QUANTIZE", _INT16, {}, 2),
    ],
)
def test_the_version_of_a_form(kind: str, dtype: ir.DataType, options: dict[str, Any], number: int) -> None:
    assert version(kind, [dtype], 4, options) == number


@pytest.mark.parametrize(("kind", "number"), [("CONV_2D", 7), ("EMBEDDING_LOOKUP", 4), ("FULLY_CONNECTED", 10)])
def test_the_version_of_weights_of_4_bits(kind: str, number: int) -> None:
    assert version(kind, [_INT8, ir.DataType.INT4], 4, {}) == number
