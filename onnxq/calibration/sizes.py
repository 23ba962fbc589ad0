"""How large tensors are on the data, where sizes differ from sample to sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.graph.shapes import sizes_at
from onnxq.graph.traverse import with_subgraphs

__all__ = ["other_sized", "sizes_on", "typical"]

_MUCH_MORE = 4
"""Times the elements of an input from which on a model does other work: a prompt, where others are single tokens."""

_SAME_SIZE = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def typical(samples: Sequence[KeptSample]) -> KeptSample:
    """The first sample with the median number of input elements: data may be sorted by size.

    Args:
        samples: at least one.
    """
    elements = [sum(array.size for array in sample.feeds.values()) for sample in samples]
    return samples[elements.index(sorted(elements)[len(elements) // 2])]


def other_sized(samples: Sequence[KeptSample]) -> tuple[KeptSample, str] | None:
    """The sample that is largest beside the typical one, and the input that it gives so much more of.

    So of a decoder's prompts, where most samples are single tokens with a cache, the longest; of single tokens, where
    most are prompts with an empty cache, the one with most behind it.

    Args:
        samples: at least one.

    Returns:
        None where no sample gives four times as much of an input as the typical one.
    """
    usual = typical(samples).feeds
    found = [
        (array.size / usual[name].size if usual[name].size else math.inf, array.size, -place, -row, name)
        for place, sample in enumerate(samples)
        for row, (name, array) in enumerate(sample.feeds.items())
        if name in usual and array.size >= max(_MUCH_MORE * usual[name].size, 1)
    ]
    if not found:
        return None
    _, _, place, _, name = max(found)
    return samples[-place], name


def sizes_on(model: ir.Model, statistics: Statistics) -> dict[str, int]:
    """Tensor name → number of elements in the typical sample, as far as it is known; empty without kept samples.

    Where no shape is inferred from the sample's, as behind the computed shapes of a text encoder, the elements that
    were counted in all samples tell: their mean, times what inferred sizes of the same graph are of counted ones. So
    what a Loop runs counts once in its body, as inferred sizes do.

    Args:
        model: left unchanged. Names must be unique over the model.
        statistics: of this model.
    """
    if not statistics.kept:
        return {}
    sizes = sizes_at(model, {name: array.shape for name, array in typical(statistics.kept).feeds.items()})
    counted = {name: tensor.elements / tensor.samples for name, tensor in statistics.tensors.items() if tensor.samples}
    for graph in with_subgraphs(model.graph):
        made = {value.name or "": node for node in graph for value in node.outputs}
        both = [sizes[name] / counted[name] for name in made if name in sizes and name in counted]
        if not both and graph is not model.graph:
            continue
        _fill(sizes, made, counted, median(both) if both else 1.0)
    return sizes


def _fill(sizes: dict[str, int], made: Mapping[str, ir.Node], counted: Mapping[str, float], share: float) -> None:
    """Sizes, in place, of what nodes make and no shape is inferred of: as counted, or those of what they read."""
    for name, node in made.items():
        if name in sizes:
            continue
        source = node.inputs[0].name if node.domain == "" and node.op_type in _SAME_SIZE and node.inputs[0] else ""
        if name in counted:
            sizes[name] = max(1, round(counted[name] * share))
        elif source in sizes:
            sizes[name] = sizes[source]
