"""Weights whose integers a Clip bounds to fewer bits than their type has, as Brevitas writes them.

ONNX had no integers of less than 8 bits for long: weights of 4 bits are int8 and a Clip to -8 and 7, or to -7 and 7,
between them, or their QuantizeLinear, and the DequantizeLinear.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.edits import remove_nodes, set_constant
from onnxq.graph.evaluate import evaluate
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant
from onnxq.qparams import QParams
from onnxq.spec import QuantSpec

__all__ = ["bounded", "is_clip_of_integers", "store_clipped"]

_NARROW = "onnxq.bounds"
"""Key in the ``meta`` of stored integers that a Clip bounded: its two ends."""
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)


def is_clip_of_integers(node: ir.Node) -> bool:
    """Whether a node bounds 8-bit integers that a DequantizeLinear alone reads, at both ends, by constants."""
    data = node.inputs[0] if node.op_type == "Clip" and node.domain in OF_QUANTIZERS else None
    if data is None or data.dtype not in _INTEGERS or len(node.inputs) != 3:
        return False
    readers = {use.node.op_type for use in node.outputs[0].uses()}
    return readers == {"DequantizeLinear"} and all(constant_array(v) is not None for v in node.inputs[1:])


def store_clipped(model: ir.Model, namer: Namer) -> None:
    """Put constants of integers, which know their bounds, in the place of such Clips of constants; in place.

    Args:
        model: normalized.
        namer: of the model.
    """
    for node in list(all_nodes(model)):
        if not is_clip_of_integers(node) or not isinstance(node.graph, ir.Graph):
            continue
        data = node.inputs[0]
        maker = data.producer() if data is not None else None
        quantizes = maker is not None and maker.op_type == "QuantizeLinear" and maker.domain in OF_QUANTIZERS
        chain = [maker, node] if maker is not None and quantizes and all(map(is_constant, maker.inputs)) else [node]
        if data is None or (len(chain) == 1 and not is_constant(data)):
            continue
        output = node.outputs[0]
        known = evaluate(chain, [output], opset_imports=model.opset_imports, ir_version=model.ir_version)
        if output not in known:
            continue
        first = chain[0].inputs[0]
        stored = set_constant(node.graph, namer, (first.name if first is not None else None) or "weight", known[output])
        low, high = (np.asarray(constant_array(value)).reshape(()) for value in node.inputs[1:])
        stored.meta[_NARROW] = (int(low), int(high))
        for use in list(output.uses()):
            use.node.replace_input_with(use.idx, stored)
        remove_nodes([node])


def bounded(qparams: QParams, stored: ir.Value) -> QParams:
    """The numbers of stored integers, on the narrowest grid that holds what a Clip let through."""
    ends = stored.meta.get(_NARROW)
    if ends is None:
        return qparams
    spec, (low, high) = qparams.spec, ends
    for bits in range(2, spec.bits):
        grid = QuantSpec(bits, spec.signed)
        points = qparams.zero_point
        if grid.qmin <= min(low, points.min()) and max(high, points.max()) <= grid.qmax:
            return replace(qparams, spec=replace(spec, bits=bits))
    return qparams
