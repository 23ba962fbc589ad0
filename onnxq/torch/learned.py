"""Which constants of a quantized model are trained: weights and biases of layers."""

from __future__ import annotations

from collections.abc import Mapping

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of, rank_of
from onnxq.quantized import Quantized

__all__ = ["learned_constants"]

_LEARNED: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "GRU": (1, 2, 3),
    "Gather": (0,),
    "Gemm": (0, 1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RNN": (1, 2, 3),
}
"""Operator → inputs that are trained where they are constants."""


def learned_constants(quantized: Quantized) -> set[str]:
    """Names of the constants that are trained."""
    found = {site.tensor for site in quantized.plan.sites if site.role in ("weight", "bias")}
    for node in all_nodes(quantized.model):
        inputs = [value for value in node.inputs if value is not None]
        if node.domain != "":
            continue
        for index in _LEARNED.get(node.op_type, ()):
            if (value := input_of(node, index)) is not None:
                found.add(value.name or "")
        makers = [producer.op_type for value in inputs if (producer := value.producer()) is not None]
        if node.op_type == "Add" and "MatMul" in makers:  # its bias
            found |= {value.name or "" for value in inputs if rank_of(value) == 1}
    return found
