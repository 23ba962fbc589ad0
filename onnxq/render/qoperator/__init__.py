"""Quantized → ONNX with QOperators, that is operators on integers that hold their scales: QLinearConv, QLinearAdd, ...

Standard ONNX has QLinearConv and QLinearMatMul; the others are onnxruntime's, domain ``com.microsoft``. In the QDQ
rendering each DequantizeLinear → operator → QuantizeLinear becomes one operator: its integers are those of the
quantizers, its biases int32 in units of data scale times weight scale. Data movement runs on the integers themselves.
What has no QOperator stays between DequantizeLinear and QuantizeLinear. Names: ``t_quantized`` for the integers of a
tensor ``t``, and nodes keep theirs.

Verified on onnxruntime 1.31.1 (x86-64): every operator of the table, with graph optimizations and without.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Format
from onnxq.quantized import Quantized
from onnxq.render.formats import write_rendered
from onnxq.render.qoperator.rewrite import rewrite

__all__ = ["QOPERATOR", "notes", "render"]


def render(quantized: Quantized, *, signed: bool = True) -> ir.Model:
    """The quantized model with QOperators.

    Args:
        quantized: left unchanged.
        signed: int8 activations too; else they stay in QDQ form.

    Returns:
        A new model, with the names, types and order of the float model's inputs and outputs.
    """
    model = quantized.qdq()
    rewrite(model, signed=signed)
    return model


def notes(quantized: Quantized, *, signed: bool = True) -> list[str]:
    """Why nodes that the plan quantizes are no QOperators, one line a reason with its nodes."""
    kept = rewrite(quantized.qdq(), signed=signed)
    by_reason: dict[str, list[str]] = {}
    for node, op in quantized.plan.quantized.items():
        if node in kept:
            by_reason.setdefault(f"{op}: {kept[node]}", []).append(node)
    return [
        f"qoperator: {len(nodes)} stay between DequantizeLinear and QuantizeLinear, {reason}: {', '.join(nodes)}"
        for reason, nodes in by_reason.items()
    ]


QOPERATOR = Format(render, write_rendered, integers=True, notes=notes)
