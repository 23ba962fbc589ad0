"""Which operators of a model quantize, or compute with integers: whether it was quantized already."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.files.qonnx import GIVEN_AS
from onnxq.graph.traverse import all_nodes
from onnxq.ort.fp4_in_float import DYNAMIC

__all__ = ["BORDER", "PACKED", "QUANTIZERS", "WHILE_RUNNING", "is_in_integers", "quantizing"]

QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "FakeQuantize", "NNIEQuantize", "DynamicFakeQuantize"})
BORDER = "onnxq.border"
"""Key in the ``meta`` of a quantizer where a model takes or gives integers: the float tensor beside it has a site."""
WHILE_RUNNING = frozenset(
    {"ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"}
    | {"MatMulInteger", "MatMulIntegerToFloat", DYNAMIC}
)
"""What finds scales of activations while it runs, or computes with those."""
PACKED = frozenset({"GatherBlockQuantized", "MatMulBnb4", "MatMulNBits", "QMoE"})
"""What reads weights in integers, and activations in float."""
_OTHERS = frozenset({"QAttention", "QGemm", "Quant"}) | PACKED


def is_in_integers(op: str) -> bool:
    """Whether an operator type computes with integers, as those do whose names begin with QLinear."""
    return op in WHILE_RUNNING or op in _OTHERS or op.startswith("QLinear")


def quantizing(model: ir.Model) -> list[str]:
    """Operator types of all nodes that quantize, dequantize, or compute with integers, in the order of the graph.

    They are those of the file, which are not those of the model where QONNX's are read.
    """
    found = [node for node in all_nodes(model) if node.op_type in QUANTIZERS or is_in_integers(node.op_type)]
    return [str(node.meta.get(GIVEN_AS, node.op_type)).rpartition("::")[2] for node in found]
