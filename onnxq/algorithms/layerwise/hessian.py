"""What layers read, measured on samples: the second moments by which the error of a changed weight is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.common.originals import original
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, is_behind
from onnxq.algorithms.layerwise.joins import joins_of
from onnxq.algorithms.layerwise.moments import Moments
from onnxq.algorithms.layerwise.sums import Sums
from onnxq.calibration.capture import capture
from onnxq.calibration.statistics import KeptSample
from onnxq.plan import Edge
from onnxq.qparams import fake_quantize
from onnxq.spec import FEW_BITS

__all__ = ["LARGEST", "Seen", "batches", "moments_of"]

Array = NDArray[Any]

LARGEST = 6144
"""Largest number of inputs of a group: its second moments take 302 MB."""
_BUDGET = 1 << 30
"""Bytes of moments held at a time."""
_MOST = 64
"""Batches of layers that read what the quantized layers before them give: each takes runs of two models."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a layer read.

    Attributes:
        layer: the layer.
        fitting: moments over the samples to learn from.
        held: over those that guard.
        every: over all that may be learned from once it is decided whether to.
    """

    layer: QuantizedLayer
    fitting: Moments
    held: Moments
    every: Moments


def batches(
    layers: Sequence[QuantizedLayer], apart: ir.Graph | None = None, budget: int = _BUDGET
) -> list[list[QuantizedLayer]]:
    """Consecutive layers whose moments fit into a budget together.

    Args:
        layers: in the order of the graph.
        apart: the main graph, where a layer is not to be in one batch with those that it depends on. Of a model with
            more than 64 such steps neighbouring ones are in one batch all the same.
        budget: bytes.
    """
    steps = [list(layers)] if apart is None else _steps(layers, apart)
    found: list[list[QuantizedLayer]] = []
    for number in range(min(len(steps), _MOST)):
        total = budget
        for layer in (one for step in _part(steps, number) for one in step):
            groups, _, inputs = layer.matrix().shape
            need = 2 * 8 * groups * inputs * inputs
            if total + need > budget:
                found.append([])
                total = 0
            found[-1].append(layer)
            total += need
    return found


def _steps(layers: Sequence[QuantizedLayer], top: ir.Graph) -> list[list[QuantizedLayer]]:
    """Runs of layers of which none depends on another one."""
    found: list[list[QuantizedLayer]] = []
    for layer in layers:
        if not found or is_behind(layer, found[-1], top):
            found.append([])
        found[-1].append(layer)
    return found


def _part(steps: Sequence[list[QuantizedLayer]], number: int) -> Sequence[list[QuantizedLayer]]:
    """The steps of one of at most 64 even parts."""
    count = min(len(steps), _MOST)
    return steps[number * len(steps) // count : (number + 1) * len(steps) // count]


def moments_of(draft: Draft, layers: Sequence[QuantizedLayer], *, prefix: bool = False) -> Iterator[Seen]:
    """What layers read: in the float model, or in the quantized model as it is now.

    A layer that reads what another one of the batch makes is not told by how much its input has changed: it will change
    again when the other one does.

    Args:
        draft: gives the models and the samples.
        layers: one batch of :func:`batches`.
        prefix: in the quantized model.

    Yields:
        The layers whose input can be observed, holds finite values only, and has the shape that it has in the float
        model: else its positions are others, which cannot be compared.
    """
    fitting = _accumulate(draft, layers, draft.fitting, prefix)
    held = _accumulate(draft, layers, draft.held, prefix)
    for layer in layers:
        first, second = fitting.get(layer.name), held.get(layer.name)
        if first is not None and second is not None:
            if prefix and is_behind(layer, layers, draft.model.graph):
                first, second = (replace(part, shift=None, drift=None) for part in (first, second))
            yield Seen(layer, first, second, first.joined(second) if _is_taught_by_all(draft, layer) else first)


def _is_taught_by_all(draft: Draft, layer: QuantizedLayer) -> bool:
    """Whether a layer is learned from the samples that guard as well, once these have told.

    In few bits so much is gained that more samples are worth more than guards that taught nothing. In 8, gains are a
    matter of chance without such guards: with a classifier of pages a loss of 4 dB was told as 9 more.
    """
    return draft.guards_teach and draft.numbers[layer.site].spec.bits <= FEW_BITS


def _accumulate(
    draft: Draft, layers: Sequence[QuantizedLayer], samples: Sequence[KeptSample], prefix: bool
) -> dict[str, Moments]:
    every = len(draft.fitting) + len(draft.held)
    counts = {layer.name: every if _is_taught_by_all(draft, layer) else len(samples) for layer in layers}
    sums = {layer.name: Sums(layer, _weight(draft, layer), counts[layer.name]) for layer in layers}
    add = _add_quantized if prefix else _add_float
    add(draft, layers, samples, sums)
    made = {name: entry.moments() for name, entry in sums.items()}
    return {name: moments for name, moments in made.items() if moments is not None}


def _add_float(
    draft: Draft, layers: Sequence[QuantizedLayer], samples: Sequence[KeptSample], sums: Mapping[str, Sums]
) -> None:
    """Add what layers read in the float model."""
    names = [layer.data.name or "" for layer in layers]
    for group, runs in capture(draft.reference, names, samples, options=draft.options, sizes=draft.sizes):
        readers = [layer for layer in layers if layer.data.name in group]
        for number, arrays in enumerate(runs):
            for layer in readers:
                sums[layer.name].add(number, arrays[layer.data.name or ""])


def _add_quantized(
    draft: Draft, layers: Sequence[QuantizedLayer], samples: Sequence[KeptSample], sums: Mapping[str, Sums]
) -> None:
    """Add what layers read in the quantized model, and what they read in the float one; so of what is added to them."""
    joins, grids, rendered = joins_of(draft, layers), _Grids(draft), draft.quantized().with_tensors()
    names = [layer.data.name or "" for layer in layers] + [join.tensor for join in joins.values()]
    options, sizes = draft.options, draft.sizes
    for group, runs in capture(draft.reference, names, samples, options=options, sizes=sizes):
        readers = [layer for layer in layers if layer.data.name in group]
        for changed, others in capture(rendered, group, samples, options=options, sizes=sizes, budget=1 << 62):
            for number, (arrays, got) in enumerate(zip(runs, others, strict=True)):
                for layer in readers:
                    name, join = layer.data.name or "", joins.get(layer.name)
                    beside = None
                    if join is not None and join.tensor in changed:
                        beside = grids.read(join.edge, join.tensor, got), arrays[join.tensor]
                    if name in changed:
                        sums[layer.name].add(number, grids.read(Edge(layer.name, 0), name, got), arrays[name], beside)


def _weight(draft: Draft, layer: QuantizedLayer) -> NDArray[np.float64]:
    return layer.matrix(original(draft, layer.weight.name)).astype(np.float64)


class _Grids:
    """With which numbers nodes read activations."""

    def __init__(self, draft: Draft) -> None:
        self._numbers, self._readers = draft.numbers, draft.plan.by_edge("activation")
        self._behind = {s.tensor: s for s in draft.plan.sites if s.role == "activation" and s.produced}

    def read(self, edge: Edge, tensor: str, found: Mapping[str, Array]) -> Array:
        """What a node reads of a tensor: on its grid, or as it is where it is read in float."""
        site = self._readers.get(edge, self._behind.get(tensor))
        return found[tensor] if site is None else fake_quantize(found[tensor], self._numbers[site.name])
