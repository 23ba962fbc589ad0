"""Biases that an algorithm has fitted to the data: they hold more than the mean error of rounding the weights, which
must not take their place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of

__all__ = ["fitted_biases", "set_computed"]

_COMPUTED = "onnxq.computed_bias"
"""In the metadata of a bias: the tensor that :func:`set_computed` gave it."""


def set_computed(bias: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Give a bias numbers that follow from weights alone, to be computed anew where these have changed."""
    bias.const_value = tensor
    bias.meta[_COMPUTED] = tensor


def fitted_biases(model: ir.Model, reference: ir.Model) -> set[str]:
    """Names of the biases of convolutions and Gemms that differ from the float model's and were not computed.

    Args:
        model: a copy of the float model, whose biases algorithms may have changed.
        reference: the float model as it was. Where a layer has no bias there, zeros are no difference.
    """
    before = {node.name: _bias(node) for node in all_nodes(reference)}
    found = set()
    for node in all_nodes(model):
        bias, was = _bias(node), before.get(node.name)
        if bias is None or bias.const_value is bias.meta.get(_COMPUTED):
            continue
        if was is not None and bias.const_value is was.const_value:
            continue
        now, then = constant_array(bias), constant_array(was)
        if now is not None and not np.array_equal(now, np.zeros_like(now) if then is None else then):
            found.add(bias.name or "")
    return found


def _bias(node: ir.Node) -> ir.Value | None:
    return input_of(node, 2) if node.op_type in ("Conv", "Gemm") else None
