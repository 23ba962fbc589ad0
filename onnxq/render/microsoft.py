"""QDQ with 4- and 16-bit integers below opset 21, in the operators of onnxruntime's own domain.

The standard QuantizeLinear and DequantizeLinear know those integers from opset 21 on, those of domain ``com.microsoft``
at any opset. Verified on onnxruntime 1.31.1. Weights of 4 bits are dequantized at every run there, and their layers
computed in float: only from opset 21 on can onnxruntime widen them when it loads the model.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Format
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of
from onnxq.quantized import Quantized
from onnxq.render.formats import write_rendered

__all__ = ["QDQ_MICROSOFT", "render"]

_STANDARD_OPSET = 21
_WIDE = frozenset({ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4})
_NARROW = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
_NARROW_IR = 10
"""Version of the file format from which on it holds 4-bit integers."""


def render(quantized: Quantized) -> ir.Model:
    """The QDQ model, quantizers of 4 and 16 bits in onnxruntime's domain where the opset has no others.

    Args:
        quantized: left unchanged.
    """
    model = quantized.qdq()
    if model.opset_imports.get("", 0) >= _STANDARD_OPSET:
        return model
    for node in all_nodes(model):
        zero = input_of(node, 2)
        quantizer = node.op_type in ("QuantizeLinear", "DequantizeLinear")
        if not quantizer or zero is None or zero.dtype not in _WIDE:
            continue
        node.domain = MICROSOFT
        model.opset_imports[MICROSOFT] = 1
        if zero.dtype in _NARROW:
            model.ir_version = max(model.ir_version, _NARROW_IR)
    return model


QDQ_MICROSOFT = Format(render, write_rendered)
"""QuantizeLinear and DequantizeLinear, of domain ``com.microsoft`` where the standard ones lack the integers."""
