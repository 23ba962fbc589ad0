"""Constants that a model given rounds while it runs, rounded for good: on a target that leaves them float, too.

Out of training, and of tools that keep float weights in front of their quantizers, a layer that a target computes in
float would else have weights, or a bias, that the model given never computed with.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_constants
from onnxq.graph.values import constant_array
from onnxq.plan import Edge
from onnxq.qparams import fake_quantize
from onnxq.quantized import Quantized
from onnxq.spec import Scheme

__all__ = ["round_weights"]

_WIDEST = 16
"""Bits of integers of which float32 holds every multiple of a scale so that it rounds to the same again."""


def round_weights(quantized: Quantized) -> None:
    """Put weights, biases and constant operands on their grids, in place, where nothing reads them unrounded.

    Args:
        quantized: as read from a model; no tensor has two grids.
    """
    constants = all_constants(quantized.model)
    for site in quantized.plan.sites:
        value, numbers = constants.get(site.tensor), quantized.qparams[site.name]
        array = constant_array(value)
        if (
            site.role == "activation"
            or value is None
            or array is None
            or array.dtype != np.float32
            or numbers.spec.bits > _WIDEST
        ):
            continue
        if numbers.spec.scheme is not Scheme.UNIFORM or value.is_graph_output():
            continue
        if {Edge(use.node.name or "", use.idx) for use in value.uses()} <= set(site.readers):
            rounded = fake_quantize(array, numbers)
            if not np.array_equal(rounded, array):
                value.const_value = ir.Tensor(rounded, name=value.name)
