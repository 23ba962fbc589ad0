"""Gemm's alpha and beta fold into its constants, so that it computes A B + C plainly, C being a row."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.layer import FLOATS, Refusal, check_finite, replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of

__all__ = ["fold_gemm"]


def fold_gemm(model: ir.Model) -> list[Note]:
    """Folds alpha into a constant B (or A) and beta into a constant C; transposes stay as they are.

    beta = 0 drops C. What is not constant keeps its factor, with a note. A constant C of one number becomes one row of
    as many, which is what kernels know.

    Args:
        model: changed in place. Constants must be folded.
    """
    notes: list[Note] = []
    namer = Namer(model)
    for node in list(all_nodes(model)):
        if node.op_type != "Gemm" or node.domain != "":
            continue
        try:
            _fold_alpha(node, namer)
            _fold_beta(node, namer)
            _spread(node, namer)
        except Refusal as reason:
            notes.append(Note("gemm", node.name or "", f"not folded: {reason}"))
    return notes


def _scale_input(node: ir.Node, index: int, factor: float, namer: Namer) -> bool:
    value = node.inputs[index]
    array = constant_array(value)
    if value is None or array is None or value.dtype is None or value.dtype not in FLOATS:
        return False
    scaled = array.astype(np.float64) * factor
    check_finite(scaled, dtype=value.dtype)
    replace_constant(node, index, scaled, namer, f"{node.name}_scaled", value.dtype)
    return True


def _fold_alpha(node: ir.Node, namer: Namer) -> None:
    alpha = node.attributes.get_float("alpha", 1.0)
    if alpha == 1.0:
        return
    if not _scale_input(node, 1, alpha, namer) and not _scale_input(node, 0, alpha, namer):
        raise Refusal(f"alpha={alpha:g}, and neither A nor B is constant")
    node.attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)


def _fold_beta(node: ir.Node, namer: Namer) -> None:
    beta = node.attributes.get_float("beta", 1.0)
    if beta == 1.0:
        return
    if input_of(node, 2) is not None:
        if beta == 0.0:
            node.resize_inputs(2)
        elif not _scale_input(node, 2, beta, namer):
            raise Refusal(f"beta={beta:g}, and C is not constant")
    node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)


def _spread(node: ir.Node, namer: Namer) -> None:
    weight, value = node.inputs[1], input_of(node, 2)
    array, axis = constant_array(value), 0 if node.attributes.get_int("transB", 0) else 1
    columns = weight.shape[axis] if weight is not None and weight.shape is not None else None
    if value is None or value.dtype is None or array is None or array.size != 1 or not isinstance(columns, int):
        return
    if columns > 1 and value.dtype in FLOATS:
        row = np.full(columns, array.reshape(()), array.dtype)
        replace_constant(node, 2, row, namer, f"{node.name}_row", value.dtype)
