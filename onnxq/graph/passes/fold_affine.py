"""Mul, Div, Add and Sub with a constant for each channel fold into the linear layer before them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.graph.layer import Channels, Layer, Refusal, Shared, find_layer, per_channel
from onnxq.graph.namer import Namer
from onnxq.graph.note import NOT_FOLDED, Note
from onnxq.graph.passes.affine import fold_into_previous, scale_and_shift
from onnxq.graph.passes.tied_tables import holds_a_table, tables_of
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import AnyArray, constant_array

__all__ = ["ARITHMETIC", "arithmetic_behind", "fold_affine"]

ARITHMETIC = ("Mul", "Div", "Add", "Sub")


def fold_affine(model: ir.Model) -> list[Note]:
    """Folds per-channel arithmetic with constants into Conv, ConvTranspose, Gemm or MatMul before it.

    Frozen batch normalizations written as Mul and Add, a bias added after the convolution, a division by a constant.
    An Add after a MatMul is its bias and stays, and what follows it folds into both. Element-wise arithmetic that
    varies within a channel, or on an output that others read too, is no part of a layer and stays without a note. So
    does a factor behind a weight that is an embedding as well, which is stored once as long as both are the same.

    Args:
        model: changed in place. Constants must be folded; ranks known for MatMul.

    Returns:
        A note of how many were folded, and one with the reason for each that was not for its numbers.
    """
    notes: list[Note] = []
    folded = 0
    namer = Namer(model)
    tables = tables_of(model)
    for graph in all_graphs(model):
        for node in list(graph):
            if node.op_type not in ARITHMETIC:
                continue
            try:
                found = arithmetic_behind(node, tables)
                if found is not None:
                    layer, scale, shift = found
                    fold_into_previous(layer, node, scale, shift, namer)
                    folded += 1
            except Shared:
                continue  # part of an activation function that reads the layer's output more than once
            except Refusal as reason:
                notes.append(Note("fold_affine", node.name or "", f"{NOT_FOLDED}: {reason}"))
    if folded:
        notes.insert(0, Note("fold_affine", "", f"{folded} element-wise nodes folded into layers"))
    return notes


def arithmetic_behind(node: ir.Node, tables: Sequence[ir.Value]) -> tuple[Layer, Channels, Channels] | None:
    """The layer that a node's per-channel arithmetic may fold into, and the scale and shift it does, each (M,).

    Args:
        node: any.
        tables: see :func:`onnxq.graph.passes.tied_tables.tables_of`.

    Returns:
        None where it is no such arithmetic, or is the bias of the layer, or the weight is an embedding as well.
    """
    if node.op_type not in ARITHMETIC or node.domain != "" or len(node.inputs) != 2:
        return None
    for index in (0, 1):
        array = constant_array(node.inputs[1 - index]) if node.inputs[1 - index] is not None else None
        if array is None or node.inputs[index] is None:
            continue
        layer = find_layer(node.inputs[index])
        if layer is None or layer.node is node or layer.add is node:
            continue
        if layer.node.op_type == "MatMul" and layer.add is None and node.op_type in ("Add", "Sub"):
            continue  # that is the bias of the MatMul
        affine = _affine(node.op_type, index, array, layer)
        if affine is None:
            continue
        if node.op_type in ("Mul", "Div") and holds_a_table(layer.weight, tables):
            continue
        return layer, *affine
    return None


def _affine(op: str, index: int, array: AnyArray, layer: Layer) -> tuple[Channels, Channels] | None:
    """Scale and shift, each (M,) float64, when the layer's output is input ``index`` of the operator."""
    constant = per_channel(array, layer)
    if constant is None:
        return None
    return scale_and_shift(op, index, constant)
