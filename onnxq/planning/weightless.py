"""Why the constants that an operator reads are no weights to be quantized."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.integer_operators import BORDER, QUANTIZERS, is_in_integers

__all__ = ["ALREADY", "reads_quantized", "why_no_weights"]

ALREADY = "already quantized in the input model"

_TURNING = frozenset({"GroupQueryAttention", "RotaryEmbedding", "SparseAttention"})
"""What reads tables of cosines and sines."""


def why_no_weights(node: ir.Node) -> str | None:
    """What the constants of a node are, if not weights; ``None`` where they may be.

    Args:
        node: no quantizer itself.
    """
    if is_in_integers(node.op_type) or reads_quantized(node):
        return ALREADY
    return "it has no weights, but tables of cosines and sines" if node.op_type in _TURNING else None


def reads_quantized(node: ir.Node, positions: slice = slice(None)) -> bool:
    """Whether a node reads what a quantizer of the model gives, at some of its inputs; but not one at its border."""
    producers = [value.producer() for value in node.inputs[positions] if value is not None]
    return any(p is not None and p.op_type in QUANTIZERS and BORDER not in p.meta for p in producers)
