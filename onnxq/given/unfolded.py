"""Activation functions that a QDQ model leaves to its quantizers, written out again.

A quantizer whose grid begins at 0 computes a Relu on the side, so onnxruntime's rendering (and onnxq's for it) leaves
out the Relu or Clip in front of it. Taken out of such a model, the quantizers leave a float model without those
functions: wherever another target quantizes less, it would compute something else. A Clip to other bounds is written
out where onnxq has left a mark of it (:mod:`onnxq.render.clips_kept`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxq.given.written_out import bound_behind
from onnxq.graph.namer import Namer
from onnxq.graph.recognition.signs import cannot_be_negative
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Edge, Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.clips_kept import marked_clip, take_mark
from onnxq.spec import PerTensor, Scheme

__all__ = ["unfolded"]

_SIX = 6.0
"""Where a Relu6 ends."""
_RELU = (0.0, math.inf)


def unfolded(quantized: Quantized) -> Quantized:
    """The same with a Relu, or a Clip from 0 to 6 or as marked, in front of every quantizer that saturates as it does.

    Where nothing in front of a quantizer shows that its tensor is never negative, and its grid begins at 0, a Relu
    changes nothing for who reads the quantized tensor; a Clip to 6 neither, where the grid ends within a step of 6.
    What reads the tensor past its quantizers, or quantized on a grid that begins below 0, reads it as before.

    Args:
        quantized: as read from a model (see :mod:`onnxq.render.reading.read`); left unchanged.

    Returns:
        It, with the functions and a note, or as it is where none are missing. The tensor keeps its name where all that
        reads it wants the function; else those that do read another.
    """
    marks = _marks(quantized)
    sites = _saturating(quantized, marks)
    ends = {tensor for tensor, (site, *_) in sites.items() if site.produced and marks.get(tensor, _RELU)[0] >= 0}
    model = quantized.model.clone()
    namer, made = Namer(model), 0
    changed: dict[str, Site] = {}
    for value in [value for node in all_nodes(model) for value in node.outputs]:
        found, mark = sites.get(value.name or ""), marks.get(value.name or "")
        if found is None or (mark is None and cannot_be_negative(value, ends, joined=True)):
            continue
        six = all(_ends_at_six(quantized.qparams[site.name]) for site in found)
        changed |= _write(value, found, mark or (0.0, _SIX if six else math.inf), namer)
        made += 1
    if not made:
        return quantized
    plan = replace(quantized.plan, sites=tuple(changed.get(site.name, site) for site in quantized.plan.sites))
    note = f"read: {made} Relu or Clip, which quantizers of the model given compute on the side, were written out"
    return replace(quantized, model=model, plan=plan, notes=(*quantized.notes, note))


def _saturating(quantized: Quantized, marks: Container[str]) -> dict[str, list[Site]]:
    """Tensor → its sites whose quantizers compute a function on the side."""
    found: dict[str, list[Site]] = {}
    for site in quantized.plan.sites:
        if site.role == "activation" and (site.tensor in marks or _begins_at_zero(quantized.qparams[site.name])):
            found.setdefault(site.tensor, []).append(site)
    return found


def _write(value: ir.Value, sites: Sequence[Site], bounds: tuple[float, float], namer: Namer) -> dict[str, Site]:
    """Write out the function behind a tensor, for all that reads it or for the readers of its sites alone.

    Returns:
        Site name → the site as it is now, of those whose tensor is another one.
    """
    edges = {edge for site in sites for edge in site.readers}
    uses = {Edge(use.node.name or "", use.idx) for use in value.uses()}
    whole = sites[0].produced or (not value.is_graph_output() and uses <= edges)
    low, high = bounds
    take_mark(value)
    upper = high if math.isfinite(high) else None
    function = bound_behind(value, low, upper, namer, readers=None if whole else edges)
    if whole:
        return {}
    name = function.outputs[0].name or ""
    return {site.name: replace(site, tensor=name, produced=len(sites) == 1) for site in sites}


def _marks(quantized: Quantized) -> dict[str, tuple[float, float]]:
    """Tensor → the bounds of the Clip that was left out behind it."""
    values = (value for node in all_nodes(quantized.model) for value in node.outputs)
    return {value.name or "": bounds for value in values if (bounds := marked_clip(value)) is not None}


def _begins_at_zero(numbers: QParams) -> bool:
    spec = numbers.spec
    uniform = spec.scheme is Scheme.UNIFORM and isinstance(spec.granularity, PerTensor)
    return uniform and int(numbers.zero_point) == spec.qmin


def _ends_at_six(numbers: QParams) -> bool:
    return abs(float(numbers.hi) - _SIX) <= float(numbers.scale)
