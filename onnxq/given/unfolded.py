"""Activation functions that a QDQ model leaves to its quantizers, written out again.

A quantizer whose grid begins at 0 computes a Relu on the side, so onnxruntime's rendering (and onnxq's for it) leaves
out the Relu or Clip in front of it. Taken out of such a model, the quantizers leave a float model without those
functions: wherever another target quantizes less, it would compute something else.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import set_constant
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.spec import PerTensor, Scheme

__all__ = ["unfolded"]

_SIX = 6.0
"""Where a Relu6 ends."""


def unfolded(quantized: Quantized) -> Quantized:
    """The same with a Relu, or a Clip from 0 to 6, in front of every quantizer that saturates as it does.

    Where nothing in front of a quantizer shows that its tensor is never negative, and its grid begins at 0, a Relu
    changes nothing for who reads the quantized tensor; a Clip to 6 neither, where the grid ends within a step of 6.

    Args:
        quantized: as read from a model (see :mod:`onnxq.render.reading.read`); left unchanged.

    Returns:
        It, with the functions and a note, or as it is where none are missing. Tensors keep their names.
    """
    ends = {
        site.tensor: quantized.qparams[site.name]
        for site in quantized.plan.sites
        if site.role == "activation" and site.produced and _begins_at_zero(quantized.qparams[site.name])
    }
    model = quantized.model.clone()
    namer, made = Namer(model), 0
    for node in list(all_nodes(model)):
        for value in node.outputs:
            if value.name in ends and not cannot_be_negative(value, ends, joined=True):
                _put_behind(value, ends[value.name], namer)
                made += 1
    if not made:
        return quantized
    note = f"read: {made} Relu or Clip, which quantizers of the model given compute on the side, were written out"
    return replace(quantized, model=model, notes=(*quantized.notes, note))


def _begins_at_zero(numbers: QParams) -> bool:
    spec = numbers.spec
    uniform = spec.scheme is Scheme.UNIFORM and isinstance(spec.granularity, PerTensor)
    return uniform and int(numbers.zero_point) == spec.qmin


def _put_behind(value: ir.Value, numbers: QParams, namer: Namer) -> None:
    maker = value.producer()
    assert maker is not None and isinstance(maker.graph, ir.Graph)
    inputs, op = [value], "Relu"
    if abs(float(numbers.hi) - _SIX) <= float(numbers.scale):
        op = "Clip"
        inputs += [set_constant(maker.graph, namer, "bound", np.float32(end).reshape(())) for end in (0, _SIX)]
    name = value.name
    uses, output = list(value.uses()), value.is_graph_output()
    node = ir.node(op, inputs, name=namer.node(f"{name}_{op}"))
    maker.graph.insert_after(maker, [node])
    result = node.outputs[0]
    result.type, result.shape = value.type, value.shape.copy() if value.shape is not None else None
    value.name = namer.fresh(f"{name}_before")
    result.name = name
    for use in uses:
        use.node.replace_input_with(use.idx, result)
    if output:
        outputs = maker.graph.outputs
        outputs[outputs.index(value)] = result
