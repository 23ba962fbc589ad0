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
from onnxq.plan import Edge, Site
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
    What reads the tensor past its quantizers, or quantized on a grid that begins below 0, reads it as before.

    Args:
        quantized: as read from a model (see :mod:`onnxq.render.reading.read`); left unchanged.

    Returns:
        It, with the functions and a note, or as it is where none are missing. The tensor keeps its name where all that
        reads it wants the function; else those that do read another.
    """
    sites: dict[str, list[Site]] = {}
    for site in quantized.plan.sites:
        if site.role == "activation" and _begins_at_zero(quantized.qparams[site.name]):
            sites.setdefault(site.tensor, []).append(site)
    ends = {tensor for tensor, (site, *_) in sites.items() if site.produced}
    model = quantized.model.clone()
    namer, made = Namer(model), 0
    changed: dict[str, Site] = {}
    for node in list(all_nodes(model)):
        for value in node.outputs:
            found = sites.get(value.name or "", [])
            if not found or cannot_be_negative(value, ends, joined=True):
                continue
            numbers = [quantized.qparams[site.name] for site in found]
            function = _function(value, all(_ends_at_six(one) for one in numbers), namer)
            edges = {edge for site in found for edge in site.readers}
            uses = [use for use in value.uses() if use.node is not function]
            if found[0].produced or (
                not value.is_graph_output() and all(Edge(use.node.name or "", use.idx) in edges for use in uses)
            ):
                _take_place(value, function, namer)
            else:
                other = function.outputs[0]
                other.name = namer.fresh(f"{value.name}_from_0")
                for use in uses:
                    if Edge(use.node.name or "", use.idx) in edges:
                        use.node.replace_input_with(use.idx, other)
                changed |= {s.name: replace(s, tensor=other.name, produced=len(found) == 1) for s in found}
            made += 1
    if not made:
        return quantized
    plan = replace(quantized.plan, sites=tuple(changed.get(site.name, site) for site in quantized.plan.sites))
    note = f"read: {made} Relu or Clip, which quantizers of the model given compute on the side, were written out"
    return replace(quantized, model=model, plan=plan, notes=(*quantized.notes, note))


def _begins_at_zero(numbers: QParams) -> bool:
    spec = numbers.spec
    uniform = spec.scheme is Scheme.UNIFORM and isinstance(spec.granularity, PerTensor)
    return uniform and int(numbers.zero_point) == spec.qmin


def _ends_at_six(numbers: QParams) -> bool:
    return abs(float(numbers.hi) - _SIX) <= float(numbers.scale)


def _function(value: ir.Value, six: bool, namer: Namer) -> ir.Node:
    """A Relu, or a Clip from 0 to 6, behind a tensor."""
    maker = value.producer()
    assert maker is not None and isinstance(maker.graph, ir.Graph)
    inputs, op = [value], "Relu"
    if six:
        op = "Clip"
        inputs += [set_constant(maker.graph, namer, "bound", np.float32(end).reshape(())) for end in (0, _SIX)]
    node = ir.node(op, inputs, name=namer.node(f"{value.name}_{op}"))
    maker.graph.insert_after(maker, [node])
    made = node.outputs[0]
    made.type, made.shape = value.type, value.shape.copy() if value.shape is not None else None
    return node


def _take_place(value: ir.Value, function: ir.Node, namer: Namer) -> None:
    """What a function makes of a tensor takes its name, its readers, and its place among the model's outputs."""
    maker, name, made = value.producer(), value.name, function.outputs[0]
    assert maker is not None and isinstance(maker.graph, ir.Graph)
    output = value.is_graph_output()
    value.name = namer.fresh(f"{name}_before")
    made.name = name
    for use in value.uses():
        if use.node is not function:
            use.node.replace_input_with(use.idx, made)
    if output:
        outputs = maker.graph.outputs
        outputs[outputs.index(value)] = made
