"""What a QuantizeLinear can say of a grid, and which clipping it makes superfluous."""

from __future__ import annotations

from collections.abc import Set

import onnx_ir as ir

from onnxq.graph.values import input_of
from onnxq.plan import Site
from onnxq.qparams import QParams
from onnxq.render.wiring import numbers
from onnxq.spec import Scheme

__all__ = ["bounds", "saturates", "speakable"]


def speakable(site: Site, widths: Set[int]) -> bool:
    """Whether Q and DQ can say what a site's spec says, on a target that runs QuantizeLinear for some widths.

    Stored integers may use a part of their type's grid. A QuantizeLinear saturates at the ends of the type, so a tensor
    quantized at run time needs the whole grid. A logarithmic grid has no scale.
    """
    if site.spec.scheme is not Scheme.UNIFORM:
        return site.spec.scheme is Scheme.FLOAT8
    if site.role != "activation":
        return True
    return site.spec.bits == site.spec.storage_bits and site.spec.bits in widths and not site.spec.narrow_range


def saturates(node: ir.Node, qp: QParams) -> bool:
    """Whether a quantizer behind a Relu or Clip saturates at the same bounds, so that the node changes no integer."""
    step = float(qp.scale.max()) / 2
    lowest, highest = bounds(node)
    return float(qp.lo.min()) >= lowest - step and float(qp.hi.max()) <= highest + step


def bounds(node: ir.Node) -> tuple[float, float]:
    """The interval a Relu or Clip (with constant bounds) clips to."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    ends = [-float("inf"), float("inf")]
    for k in (1, 2):
        value = input_of(node, k)
        if value is not None:
            ends[k - 1] = float(numbers(value).reshape(()))
    return ends[0], ends[1]
