"""Which operators of a model quantize, or compute with integers: whether it was quantized already, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxq.errors import BackendError
from onnxq.graph.traverse import all_nodes
from onnxq.reasons import counts

if TYPE_CHECKING:
    from onnxq.backend import Format
    from onnxq.quantized import Quantized

__all__ = ["QUANTIZERS", "is_in_integers", "left_while_running", "quantizing"]

QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "FakeQuantize", "NNIEQuantize"})
_WHILE_RUNNING = frozenset(
    {"ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"}
    | {"MatMulInteger", "MatMulIntegerToFloat"}
)
"""What finds scales of activations while it runs, or computes with those."""
_OTHERS = frozenset({"MatMulBnb4", "MatMulNBits", "QAttention", "QGemm", "Quant"})


def is_in_integers(op: str) -> bool:
    """Whether an operator type computes with integers, as those do whose names begin with QLinear."""
    return op in _WHILE_RUNNING or op in _OTHERS or op.startswith("QLinear")


def quantizing(model: ir.Model) -> list[str]:
    """Operator types of all nodes that quantize, dequantize, or compute with integers, in the order of the graph."""
    return [node.op_type for node in all_nodes(model) if node.op_type in QUANTIZERS or is_in_integers(node.op_type)]


def left_while_running(source: Quantized, form: Format) -> list[str]:
    """What to say of operators that find scales while they run, which a model deployed keeps as they are.

    Args:
        source: what was read from the model given.
        form: what is to be written.

    Raises:
        BackendError: the format has no way to say them, or nothing else in the model is quantized.
    """
    target = source.backend
    left = [node.op_type for node in all_nodes(source.model) if node.op_type in _WHILE_RUNNING]
    if not left or (target.at_home and source.qparams):
        return []
    what = f"{counts(left)} in the model find scales while they run, and deploy takes over those that are known before"
    hint = f"Quantize the float model for {target.name}"
    if not source.qparams or not form.integers:
        raise BackendError(what, hint=hint)
    return [f"{what}: it is not known whether {target.name} runs what is left as it is. {hint}"]
