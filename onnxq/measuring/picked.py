"""Results of a model that picks are compared by what it picks from, see :mod:`onnxq.graph.picking`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.console.terminal import listed
from onnxq.graph.picking import PICKED_FROM, Picking, picking
from onnxq.graph.shown import show
from onnxq.quantized import Quantized

__all__ = ["as_compared", "compared_by", "said_of", "with_outputs", "without_outputs"]

_NAMED = 4


def compared_by(model: ir.Model, statistics: Statistics) -> Picking:
    """What results of a model are compared by instead of outputs: nothing, unless the samples hold what that is.

    Args:
        model: the float model, as a target wants it.
        statistics: of it.
    """
    kept = statistics.kept
    if not kept or not all(sample.picked for sample in kept):
        return Picking()
    found = picking(model)
    tensors = tuple(name for name in found.tensors if all(name in sample.picked for sample in kept))
    return Picking(tensors, found.outputs, found.nodes) if tensors else Picking()


def with_outputs(model: ir.Model, statistics: Statistics, by: Picking) -> tuple[ir.Model, Statistics]:
    """A model whose outputs show what it picks from too, and its statistics, whose samples hold that as outputs.

    Args:
        model: left as it is.
        statistics: left as they are.
        by: what :func:`compared_by` gave.
    """
    made = model.clone()
    for value in show(made, by.tensors):
        value.meta[PICKED_FROM] = True

    def judged(sample: KeptSample) -> KeptSample:
        own = {name: values for name, values in sample.outputs.items() if name not in by.outputs}
        return replace(sample, outputs={**own, **{name: sample.picked[name] for name in by.tensors}})

    other = replace(statistics, kept=[judged(sample) for sample in statistics.kept])
    other.file, other.ranges = statistics.file, statistics.ranges
    return made, other


def as_compared(model: ir.Model, statistics: Statistics) -> tuple[ir.Model, Statistics]:
    """A model and its statistics, with what it picks from in place of what it makes of that, where it picks.

    Args:
        model: left as it is.
        statistics: left as they are.
    """
    by = compared_by(model, statistics)
    return with_outputs(model, statistics, by) if by.tensors else (model, statistics)


def without_outputs(quantized: Quantized, own: Collection[str]) -> Quantized:
    """A result with the outputs that the float model has, and no others.

    Args:
        quantized: of a model that :func:`with_outputs` gave.
        own: names of the float model's outputs.
    """
    model = quantized.model.clone()
    outputs = [value for value in model.graph.outputs if value.name in own]
    model.graph.outputs.clear()
    model.graph.outputs.extend(outputs)
    return replace(quantized, model=model)


def said_of(by: Picking) -> str:
    """What is compared, as a hint."""
    if not by.outputs:
        return f"compared is what an ArgMax reads, too: {listed([repr(name) for name in by.tensors], _NAMED)}"
    outputs, tensors = (listed([repr(n) for n in names], _NAMED) for names in (sorted(by.outputs), by.tensors))
    return (
        f"output {outputs}: picked among many, where rounding changes which; compared is what is picked from, {tensors}"
    )
