"""Activations of float64 numbers by their definitions, which onnxruntime has for them in some opsets only."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["LAST", "expand_doubles"]

LAST = 18
"""The opset up to which onnxruntime computes these by their definitions; the operators in there change behind it."""
_FIRST = {"LeakyRelu": 16, "PRelu": 16}
_OPERATORS = frozenset(
    {"Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Selu", "Softplus", "Softsign", "ThresholdedRelu"}
)
_DOMAIN = "onnxq.expanded"


def expand_doubles(model: ir.Model) -> list[Note]:
    """Writes activations of float64 numbers as the operators that onnx defines them by.

    onnxruntime 1.31 has kernels for float32 and float16 alone. Up to opset 18 it takes the definition for the others;
    in later opsets it refuses the model, so this comes before the opset is raised beyond that. An operator's last node
    has its name.

    Args:
        model: changed in place; of an opset up to `LAST`, its tensors' types known.
    """
    opset = model.opset_imports.get("", 0)
    found = [
        node
        for node in all_nodes(model)
        if node.domain == ""
        and node.op_type in _OPERATORS
        and opset >= _FIRST.get(node.op_type, LAST)
        and any(value is not None and value.dtype == ir.DataType.DOUBLE for value in node.inputs)
    ]
    if not found:
        return []
    kept = dict(model.functions)
    model.functions.clear()
    for op in _OPERATORS:
        function = _definition(op, opset)
        if function is not None:
            model.functions[function.identifier()] = function
    named = {value: node.name for node in found for value in node.outputs}
    order = [(graph, index) for graph, index in _ends(model, named)]
    for node in found:
        node.domain = _DOMAIN
    model.opset_imports[_DOMAIN] = 1
    InlinePass()(model)
    return order  # type: ignore
