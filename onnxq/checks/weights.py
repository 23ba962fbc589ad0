"""Are the weights of a model numbers? A NaN among them makes every result that depends on it a NaN."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.console.terminal import plural
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.unmapped import read
from onnxq.graph.values import is_constant

__all__ = ["check_weights"]

_WEIGHTED = (
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "GRU",
    "Gemm",
    "GroupNormalization",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "MatMul",
    "RNN",
)
"""What multiplies by its constants: infinity makes a NaN there. Elsewhere it may be a mask, and on purpose."""


def check_weights(model: ir.Model) -> list[Finding]:
    """A warning for every constant that holds a NaN, and for every weight that holds an infinity.

    None for NaN alone that a Where puts in the place of some elements.

    Args:
        model: left unchanged.
    """
    found: dict[ir.Value, Finding] = {}
    seen: set[ir.Value] = set()
    for node in all_nodes(model):
        for value in node.inputs:
            if value is None or (value in seen and node.op_type not in _WEIGHTED) or value in found:
                continue
            seen.add(value)
            if value.const_value is None or not is_constant(value):
                continue
            array = read(value.const_value)
            if not (array.dtype.kind == "f" or "float" in array.dtype.name):
                continue
            nans = int(np.count_nonzero(np.isnan(array)))
            if node.op_type == "Where" and nans == array.size:
                continue  # what stands for numbers that are left out: means and medians of the others skip it
            infinite = int(np.count_nonzero(np.isinf(array))) if node.op_type in _WEIGHTED else 0
            if nans or infinite:
                found[value] = _finding(node, value, nans, infinite)
    return list(found.values())


def _finding(node: ir.Node, value: ir.Value, nans: int, infinite: int) -> Finding:
    parts = [*([f"{nans} NaN"] if nans else []), *([plural(infinite, "infinite value")] if infinite else [])]
    what = f"its constant {value.name!r} holds {' and '.join(parts)}"
    hint = "What depends on it is NaN and stays float: repair the weights, or export the model again."
    return Finding("warning", describe(node), what, hint)
