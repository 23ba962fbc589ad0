"""Calls of ``onnxq::FakeQuantize``, the function that :mod:`onnxq.graph.fake_quantize_function` defines."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.fake_quantize_function import DOMAIN, NAME, VERSION, register
from onnxq.graph.values import rank_of
from onnxq.qparams import QParams
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["DOMAIN", "NAME", "VERSION", "node", "parameters", "register"]


def node(x: ir.Value, scale: ir.Value, zero_point: ir.Value, spec: QuantSpec, name: str) -> ir.Node:
    """A call of the function.

    Args:
        x: float32 tensor.
        scale: float32, shaped to broadcast against ``x``.
        zero_point: float32 whole numbers, same shape as ``scale``.
        spec: gives the ends of the grid, and the axis, which is written as an attribute for readers.
        name: the node's name.
    """
    attributes: dict[str, int] = {"quant_min": spec.qmin, "quant_max": spec.qmax}
    if isinstance(spec.granularity, PerChannel):
        attributes["axis"] = spec.granularity.axis
    return ir.node(NAME, [x, scale, zero_point], attributes=attributes, domain=DOMAIN, name=name)


def parameters(numbers: QParams, x: ir.Value) -> dict[str, NDArray[np.float32]]:
    """Scale and zero point of a grid as float32 arrays that broadcast against a tensor, by the names they have here."""
    shape = []
    if isinstance(numbers.spec.granularity, PerChannel):
        shape = [1] * (rank_of(x) or 0)
        shape[numbers.spec.granularity.axis] = -1
    return {"scale": numbers.scale.reshape(shape), "zero_point": numbers.zero_point.astype(np.float32).reshape(shape)}
