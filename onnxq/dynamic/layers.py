"""Which layers onnxruntime computes in integers faster than in float, with ranges taken at each run."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.recognition.region import ELEMENTWISE
from onnxq.graph.traverse import all_nodes, full_type
from onnxq.graph.values import input_of, is_constant, is_read
from onnxq.integer_operators import QUANTIZERS
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.ort.version import at_least, installed
from onnxq.plan import Kept
from onnxq.planning.weightless import ALREADY, reads_quantized, why_no_weights
from onnxq.render.ranges_at_run import unsaid

__all__ = ["layers_to_quantize", "whole_attention"]

_OPS = ("MatMul", "Gemm", "LSTM", "Attention")
"""What is faster so. Conv can be asked for by ``include``; its integer kernel is slower than the float one."""
_LEAST = 2
"""Dimensions of more than one element that a weight has; a constant with fewer is a bias or a factor."""
_ATTENTION_INPUTS = 5
"""Inputs of an Attention that QAttention has as well: data, weight, bias, mask, past."""
_ATTENTION, _PAST = "com.microsoft::Attention", 4


def whole_attention(model: ir.Model) -> frozenset[str]:
    """Attention (``com.microsoft``), where its nodes keep keys and values for the next run, which has one row mostly.

    QAttention takes 0.25 ms then where the products that it consists of take 0.35; of 32 rows and more they are faster.
    """
    kept = any(
        full_type(node) == _ATTENTION and (input_of(node, _PAST) is not None or is_read(node, 1))
        for node in all_nodes(model)
    )
    return frozenset({_ATTENTION}) if kept else frozenset()


def layers_to_quantize(model: ir.Model, options: Options) -> tuple[dict[str, str], list[Kept]]:
    """Node name → operator of what is to run in integers, and what is not, with the reason.

    Args:
        model: a normalized float model.
        options: ``include`` and ``exclude`` count.
    """
    nodes = list(all_nodes(model))
    selection = Selection(model, nodes, Options(exclude=options.exclude, include=options.include))
    chosen: dict[str, str] = {}
    refused: list[Kept] = []
    for node in nodes:
        weights = any(_is_weight(value) for value in node.inputs)
        product = node.op_type in ("MatMul", "Gemm")
        if node.op_type in ELEMENTWISE | QUANTIZERS or not (weights or product):
            continue
        reason = _refusal(node, selection)
        if reason is None:
            chosen[node.name or ""] = node.op_type
        else:
            refused.append(Kept(node.name or "", node.op_type, reason))
    return chosen, refused


def _refusal(node: ir.Node, selection: Selection) -> str | None:
    if (out := selection.why_out(node)) is not None:
        return out
    if node.op_type == "Conv" and not selection.forced(node):
        return "slower with ranges taken at run time than in float (--include quantizes it all the same)"
    if node.op_type == "Conv" and not at_least(1, 24):
        return f"onnxruntime {installed()} has no kernel of it for int8 weights, 1.24 has"
    if why := why_no_weights(node) if node.op_type not in _OPS else None:
        return why
    if node.op_type not in (*_OPS, "Conv") or (node.domain == "") == (node.op_type == "Attention"):
        return "onnxruntime has no kernel for it that takes ranges at run time"
    if node.op_type in ("MatMul", "Gemm") and not is_constant(node.inputs[1]):
        if reads_quantized(node, slice(1, 2)):
            return ALREADY
        return "it has no constant weight on the right"
    factors = (node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0))
    if node.op_type == "Gemm" and (factors != (1.0, 1.0) or node.attributes.get_int("transA", 0) == 1):
        return "its alpha, beta or transA is set"
    return _attention(node) if node.op_type == "Attention" else unsaid(node)


def _attention(node: ir.Node) -> str | None:
    """An Attention that QAttention can stand for."""
    if any(value is not None for value in node.inputs[_ATTENTION_INPUTS:]):
        return "onnxruntime's QAttention does not have all of its inputs"
    return unsaid(node)


def _is_weight(value: ir.Value | None) -> bool:
    if value is None or value.const_value is None or value.const_value.dtype != ir.DataType.FLOAT:
        return False
    return sum(n > 1 for n in value.const_value.shape.numpy()) >= _LEAST
