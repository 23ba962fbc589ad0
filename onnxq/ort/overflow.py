"""Whether products of 8-bit numbers overflow on this processor.

On x86-64 without VNNI instructions onnxruntime multiplies uint8 by int8 with ``vpmaddubsw``, which adds two products
and cuts the sum off at 16 bits: 255 * 127 + 255 * 127 becomes 32767. Processors with VNNI, and those of other kinds,
add in 32 bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir

__all__ = ["products_overflow"]

_ROWS, _INPUTS, _COLUMNS = 8, 64, 32


@cache
def products_overflow() -> bool:
    """Whether onnxruntime's sums of 8-bit products are cut off here: found out by a product of the largest numbers."""
    from onnxq.ort.session import Session  # onnxruntime, which a table of targets does not need

    data = ir.Value(name="data", shape=ir.Shape([_ROWS, _INPUTS]), type=ir.TensorType(ir.DataType.UINT8))
    shape = ir.Shape([_INPUTS, _COLUMNS])
    largest = ir.tensor(np.full((_INPUTS, _COLUMNS), 127, np.int8), name="weight")
    weight = ir.Value(name="weight", const_value=largest, shape=shape, type=ir.TensorType(ir.DataType.INT8))
    node = ir.node("MatMulInteger", [data, weight], name="product")
    sums = node.outputs[0]
    sums.name, sums.type = "sums", ir.TensorType(ir.DataType.INT32)
    graph = ir.Graph([data], [sums], nodes=[node], initializers=[weight], opset_imports={"": 17}, name="overflow")
    made = Session(ir.Model(graph, ir_version=8), threads=1).run({"data": np.full((_ROWS, _INPUTS), 255, np.uint8)})
    return bool((made["sums"] != _INPUTS * 255 * 127).any())
