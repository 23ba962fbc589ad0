"""Quantized → ONNX with QOperators, that is operators on integers that hold their scales: QLinearConv, QLinearAdd, ...

Standard ONNX has QLinearConv and QLinearMatMul; the others are onnxruntime's, domain ``com.microsoft``. In the QDQ
rendering each DequantizeLinear → operator → QuantizeLinear becomes one operator: its integers are those of the
quantizers, its biases int32 in units of data scale times weight scale. Data movement runs on the integers themselves.
What has no QOperator stays between DequantizeLinear and QuantizeLinear. Names: ``t_quantized`` for the integers of a
tensor ``t``, and nodes keep theirs.

Tensors of int8 stay between DequantizeLinear and QuantizeLinear too: onnxruntime 1.31 makes them uint8 there when it
loads the model, while a QLinearConv of int8 by int8 takes 20 to 30 times as long on x86 as one of uint8 by int8.

Verified on onnxruntime 1.31.1 (x86-64): every operator of the table, with graph optimizations and without.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Format
from onnxq.errors import OptionError
from onnxq.options import Options
from onnxq.quantized import Quantized
from onnxq.render.formats import write_rendered
from onnxq.render.qoperator.rewrite import rewrite

__all__ = ["QOPERATOR", "notes", "refuse_signed", "render"]

_NAME = "qoperator"


def render(quantized: Quantized) -> ir.Model:
    """The quantized model with QOperators.

    Args:
        quantized: left unchanged.

    Returns:
        A new model, with the names, types and order of the float model's inputs and outputs.
    """
    model = quantized.qdq()
    rewrite(model, {kept.node for kept in quantized.plan.kept_float})
    return model


def notes(quantized: Quantized) -> list[str]:
    """Why nodes that the plan quantizes are no QOperators, one line a reason with its nodes."""
    kept = rewrite(quantized.qdq())
    by_reason: dict[str, list[str]] = {}
    for node, op in quantized.plan.quantized.items():
        if node in kept:
            by_reason.setdefault(f"{op}: {kept[node]}", []).append(node)
    return [
        f"{_NAME}: {len(nodes)} between DequantizeLinear and QuantizeLinear, {reason}: {', '.join(nodes)}"
        for reason, nodes in by_reason.items()
    ]


def refuse_signed(options: Options) -> None:
    """For ``Backend.refuses``: int8 activations, of which this format would make no QOperator.

    Raises:
        OptionError: the options ask for them.
    """
    if options.symmetric and options.format == _NAME:
        raise OptionError(
            "symmetric int8 activations are slow as QOperators on x86",
            where="symmetric",
            hint="Leave it out, or use the format qdq",
        )


QOPERATOR = Format(render, write_rendered, integers=True, notes=notes)
"""QLinearConv, QLinearMatMul and onnxruntime's QLinear operators."""
