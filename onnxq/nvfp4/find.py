"""Which products are computed in NVFP4, and why the others stay float."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.nvfp4.recipe import Nvfp4
from onnxq.options import Options
from onnxq.ort.fp4_in_float import BLOCK
from onnxq.plan import Kept
from onnxq.weight_only.find import Matrix, find
from onnxq.weight_only.why_float import NOT_STORED

__all__ = ["find_products"]

_PRODUCTS = "NVFP4 is for the weights of MatMul and Gemm"
_AXES = (2, 3)
"""Of what TensorRT rounds at run time."""


def find_products(model: ir.Model, options: Options, recipe: Nvfp4) -> tuple[list[Matrix], list[Kept]]:
    """The weights that are multiplied with in NVFP4, and the nodes that stay float.

    Args:
        model: normalized; left as it is.
        options: ``exclude`` and ``include`` count.
        recipe: how.

    Raises:
        OptionError: a pattern matches nothing.
    """
    matrices, kept = find(model, options, recipe)
    kept = [replace(node, reason=_PRODUCTS if node.reason == NOT_STORED else node.reason) for node in kept]
    taken = []
    for matrix in matrices:
        reason = next((why for node in matrix.nodes if (why := _why_float(node, matrix, recipe))), None)
        if reason is None:
            taken.append(matrix)
        else:
            kept += [Kept(node.name or "", node.op_type, reason) for node in matrix.nodes]
    return taken, kept


def _why_float(node: ir.Node, matrix: Matrix, recipe: Nvfp4) -> str | None:
    """Why a reader of a weight stays float, and with it the others."""
    if not matrix.multiplied:
        return _PRODUCTS
    if matrix.chooses:
        return "its product is picked from: what rounding changes there is another computation"
    if matrix.shape[1] % BLOCK:
        return f"its weight has {matrix.shape[1]} inputs, which are no whole blocks of {BLOCK}"
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if recipe.activations and (shape is None or len(shape) not in _AXES):
        axes = "an unknown number of" if shape is None else str(len(shape))
        return f"its data has {axes} axes: TensorRT rounds what has {' or '.join(map(str, _AXES))}"
    return None
