"""Batch normalization in its inference form folds into the linear layer before it, or else after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxq.graph.batch_norm import is_in_training
from onnxq.graph.layer import Channels, Layer, Refusal, as_layer, find_layer
from onnxq.graph.namer import Namer
from onnxq.graph.note import NOT_FOLDED, Note
from onnxq.graph.passes.affine import fold_into_next, fold_into_previous
from onnxq.graph.traverse import all_graphs, describe
from onnxq.graph.values import constant_array, only_reader, rank_of

__all__ = ["Unfit", "batchnorm_affine", "fold_batchnorm"]

Unfit = Callable[[Layer, ir.Node, Channels], str | None]
"""A layer, the normalization in front of it and its scale, (C,): why it should not fold into the layer's weight."""


def fold_batchnorm(model: ir.Model, unfit: Unfit | None = None) -> list[Note]:
    """Folds batch normalization into the Conv, ConvTranspose, Gemm or MatMul before it or after it.

    y = gamma (x - mean) / sqrt(variance + epsilon) + beta, computed in float64 and rounded once. A variance of 0 is
    exact with epsilon; a negative one is refused. Not folded are training mode, statistics that are read, parameters
    computed at run time, a layer output that others read or that is a graph output, and, towards the layer after it,
    a shift in front of zero padding, and what ``unfit`` gives a reason against.

    Args:
        model: changed in place. Constants must be folded; ranks known for MatMul.
        unfit: asked before a normalization folds into the layer after it.

    Returns:
        A note of how many were folded, and one with the reason for each that was not.
    """
    notes: list[Note] = []
    folded = 0
    namer = Namer(model)
    for graph in all_graphs(model):
        for node in list(graph):
            if node.op_type != "BatchNormalization" or node.domain != "":
                continue
            try:
                _fold(node, namer, unfit)
                folded += 1
            except Refusal as reason:
                notes.append(Note("fold_batchnorm", node.name or "", f"{NOT_FOLDED}: {reason}"))
    if folded:
        notes.insert(0, Note("fold_batchnorm", "", f"{folded} batch normalizations folded into layers"))
    return notes


def batchnorm_affine(node: ir.Node) -> tuple[Channels, Channels]:
    """Scale and shift of a batch normalization, each (C,) float64.

    Raises:
        Refusal: it is none with constant numbers in its inference form.
    """
    if is_in_training(node):
        raise Refusal("it is in training mode, so it normalizes by the statistics of each batch")
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise Refusal("its running statistics are read")
    arrays = [constant_array(value) for value in node.inputs[1:5]]
    parameters = [array.astype(np.float64) for array in arrays if array is not None]
    if len(parameters) != 4:
        raise Refusal("its parameters are not all constant")
    gamma, beta, mean, variance = parameters
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if np.any(variance < 0):
        raise Refusal("its variance is negative")
    if np.any(variance + epsilon <= 0):
        raise Refusal("its variance and epsilon are zero")
    scale = gamma / np.sqrt(variance + epsilon)
    return scale, beta - mean * scale


def _fold(node: ir.Node, namer: Namer, unfit: Unfit | None) -> None:
    scale, shift = batchnorm_affine(node)
    source = node.inputs[0]
    layer = find_layer(source)
    before = "nothing before it to fold into"
    if layer is not None:
        try:
            if not layer.is_conv and layer.rank() != 2:
                raise Refusal("its channels are not the last axis of what it reads")
            if layer.out_channels() != scale.size:
                raise Refusal(f"it has {scale.size} channels, {describe(layer.node)} makes {layer.out_channels()}")
            fold_into_previous(layer, node, scale, shift, namer)
            return
        except Refusal as reason:
            before = str(reason)
    elif source is not None and (producer := source.producer()) is not None:
        before = f"{describe(producer)} before it is not a layer with constant weights"
    reader = only_reader(node.outputs[0])
    following = as_layer(reader) if reader is not None else None
    if following is None or following.node.inputs[0] is not node.outputs[0]:
        raise Refusal(f"{before}, nor after it")
    rank = rank_of(source)
    if not following.is_conv and rank != 2:
        raise Refusal(f"{before}; its channels are not the axis that {describe(following.node)} sums over")
    if unfit is not None and (why := unfit(following, node, scale)) is not None:
        raise Refusal(f"{before}; {why}")
    try:
        fold_into_next(following, node, scale, shift, namer)
    except Refusal as reason:
        raise Refusal(f"{before}; {reason}") from None
