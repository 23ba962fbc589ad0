"""TensorRT for transformers: also the residual Adds are quantized, both their inputs.

Placement: data and weights of linear layers, both inputs of each product of activations, and both inputs of an Add of
two activations, as in NVIDIA's quantized BERT (QDQBERT in ``transformers``) and MQBench's ``Tensorrt_NLP``. Sums of
embeddings and the Add of an attention mask stay float, and so do pools, Concat, normalizations, softmax and GELU.
A convolution (the patches of a vision transformer) is quantized as for ``tensorrt``. Formats, grids and what was
verified are those of ``tensorrt``; that the Adds gain by it is known from documents only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.backends import tensorrt
from onnxq.graph.values import is_constant

__all__ = ["BACKEND"]

_SCALES = ("Div", "Mul", "Where")
_UNCHANGED = ("Cast", "Flatten", "Reshape", "Transpose", "Unsqueeze")


def _why_no_residual(node: ir.Node) -> str | None:
    """A residual Add, both its inputs: no sum of embeddings, mask or scaled tensor."""
    if any(is_constant(v) for v in node.inputs):
        return "adds a constant, in the kernel of the operator before it"
    makers = [v.producer() if v is not None else None for v in node.inputs]
    if all(_is_embedding(maker) for maker in makers):
        return "a sum of embeddings"
    if _is_masked_softmax(node) or any(maker is not None and maker.op_type in _SCALES for maker in makers):
        return "it adds a mask or a scaled tensor, in the kernel of its neighbours"
    return None


def _is_embedding(node: ir.Node | None) -> bool:
    """Whether a node picks rows of a table, or adds such rows and constants.

    Level by level: a residual Add is told by the layer that it reads, however many Adds there are before it.
    """
    pending, seen = deque([node]), {node}
    while pending:
        current = pending.popleft()
        if current is not None and current.op_type == "Gather" and is_constant(current.inputs[0]):
            continue
        if current is None or current.op_type != "Add":
            return False
        makers = {v.producer() if v is not None else None for v in current.inputs if not is_constant(v)} - seen
        seen |= makers
        pending += makers
    return True


def _is_masked_softmax(node: ir.Node) -> bool:
    """Whether the sum is what a softmax reads."""
    value = node.outputs[0]
    while len(readers := [use.node for use in value.uses()]) == 1:
        if readers[0].op_type == "Softmax":
            return True
        if readers[0].op_type not in _UNCHANGED:
            return False
        value = readers[0].outputs[0]
    return False


_RULES = (
    *tensorrt.MULTIPLY,
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1), output=False, when=_why_no_residual),
    *tensorrt.ACROSS,
)

BACKEND = replace(
    tensorrt.BACKEND,
    name="tensorrt_nlp",
    title="TensorRT, transformers",
    rules={rule.op: rule for rule in _RULES},
    formats=tensorrt.formats("tensorrt_nlp"),
)
