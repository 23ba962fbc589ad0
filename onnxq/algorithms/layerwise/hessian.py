"""Second moments of the inputs of layers: with them the error of any change of a weight is known without a run.

For a layer ``y = W x + b`` whose weight is changed by ``D`` and whose input by ``e`` (what quantizing the layers before
it does), the change of the output is ``D (x + e) + W e + db``. Over samples and positions its mean square is::

    tr(D S D^T) + 2 tr(W R D^T) + |D m + W v + db|^2 + ...      the rest does not depend on D and db

with the moments about the means ``S`` of ``x + e`` and ``R`` of ``e`` against ``x + e``, and the means ``m`` of
``x + e`` and ``v`` of ``e``. Layers that read the float model's input have ``e = 0``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, is_behind
from onnxq.calibration.capture import capture
from onnxq.calibration.statistics import KeptSample
from onnxq.qparams import QParams, fake_quantize

__all__ = ["LARGEST", "Moments", "Seen", "batches", "moments_of"]

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

LARGEST = 6144
"""Largest number of inputs of a group: its second moments take 302 MB."""
_BUDGET = 1 << 30
"""Bytes of moments held at a time."""
_POSITIONS = 32768
_POSITIONS_PER_INPUT = 16
"""A layer is seen at no more than the larger of 32768 and 16 positions an input, spread evenly over the samples."""
_FAR = 32.0
"""Standard deviations from zero beyond which an input is far from it: a product in float32 loses 1e-4 of the spread."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of one layer's input over samples and positions.

    Attributes:
        count: positions seen.
        mean: mean of the input, float64 (groups, inputs).
        spread: second moments about the mean, float64 (groups, inputs, inputs).
        shift: mean of the input less that of the float model; ``None`` where it is the float model's.
        drift: moments of the input's change (first index) against the input (second), about the means; or ``None``.
    """

    count: int
    mean: Doubles
    spread: Doubles
    shift: Doubles | None = None
    drift: Doubles | None = None

    def total(self) -> Doubles:
        """Second moments about zero, (groups, inputs, inputs)."""
        return self.spread + self.mean[:, :, None] * self.mean[:, None, :]

    def drift_total(self) -> Doubles | None:
        """The change against the input, about zero, (groups, inputs, inputs); or ``None``."""
        if self.drift is None or self.shift is None:
            return None
        return np.asarray(self.drift + self.shift[:, :, None] * self.mean[:, None, :])

    def offset(self, weight: Doubles, change: Doubles) -> Doubles:
        """Change of each output's mean, (groups, outputs), for a weight (groups, outputs, inputs) and its change."""
        found = np.einsum("goi,gi->go", change, self.mean)
        if self.shift is not None:
            found = found + np.einsum("goi,gi->go", weight, self.shift)
        return np.asarray(found)

    def error(self, weight: Doubles, change: Doubles, bias: Doubles | float = 0.0) -> Doubles:
        """Mean square of the change of each output, (groups, outputs), less a part that is the same for all changes.

        Args:
            weight: of the float layer, (groups, outputs, inputs).
            change: of the weight, the same shape.
            bias: change of the bias, (groups, outputs).
        """
        found = np.einsum("goi,goi->go", change @ self.spread, change)
        if self.drift is not None:
            found = found + 2.0 * np.einsum("goi,goi->go", weight @ self.drift, change)
        return np.asarray(found + np.square(self.offset(weight, change) + bias))


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a layer read.

    Attributes:
        layer: the layer.
        fitting: moments over the samples to learn from.
        held: over those that judge.
    """

    layer: QuantizedLayer
    fitting: Moments
    held: Moments


def batches(layers: Sequence[QuantizedLayer], least: int = 1, budget: int = _BUDGET) -> list[list[QuantizedLayer]]:
    """Consecutive layers whose moments fit into a budget together.

    Args:
        layers: in the order of the graph.
        least: make at least so many batches, as far as there are layers.
        budget: bytes.
    """
    most = max(1, -(-len(layers) // max(1, least)))
    found: list[list[QuantizedLayer]] = [[]]
    total = 0
    for layer in layers:
        groups, _, inputs = layer.matrix().shape
        need = 2 * 8 * groups * inputs * inputs
        if found[-1] and (total + need > budget or len(found[-1]) >= most):
            found.append([])
            total = 0
        found[-1].append(layer)
        total += need
    return [batch for batch in found if batch]


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
            yield Seen(layer, first, second)


def _accumulate(
    draft: Draft, layers: Sequence[QuantizedLayer], samples: Sequence[KeptSample], prefix: bool
) -> dict[str, Moments]:
    names = [layer.data.name or "" for layer in layers]
    sums = {layer.name: _Sums(layer, len(samples)) for layer in layers}
    grids = _grids(draft, layers) if prefix else {}
    rendered = draft.quantized().rendered() if prefix else None
    options, sizes = draft.options, draft.sizes
    for group, runs in capture(draft.reference, names, samples, options=options, sizes=sizes):
        readers = [layer for layer in layers if layer.data.name in group]
        if rendered is None:
            for number, arrays in enumerate(runs):
                for layer in readers:
                    sums[layer.name].add(number, arrays[layer.data.name or ""], None)
            continue
        for changed, others in capture(rendered, group, samples, options=options, sizes=sizes, budget=1 << 62):
            for number, (arrays, got) in enumerate(zip(runs, others, strict=True)):
                for layer in readers:
                    name = layer.data.name or ""
                    if name in changed:
                        grid = grids.get(layer.name)
                        seen = got[name] if grid is None else fake_quantize(got[name], grid)
                        sums[layer.name].add(number, seen, arrays[name])
    made = {name: entry.moments() for name, entry in sums.items()}
    return {name: moments for name, moments in made.items() if moments is not None}


def _grids(draft: Draft, layers: Sequence[QuantizedLayer]) -> dict[str, QParams]:
    """With which numbers each layer reads its input; missing where it reads it in float."""
    known = {edge: s.name for s in draft.plan.sites if s.role == "activation" for edge in s.readers}
    behind = {s.tensor: s.name for s in draft.plan.sites if s.role == "activation" and s.produced}
    by_reader = {(edge.node, edge.index): name for edge, name in known.items()}
    found = {}
    for layer in layers:
        site = by_reader.get((layer.name, 0), behind.get(layer.data.name or ""))
        if site is not None:
            found[layer.name] = draft.numbers[site]
    return found


class _Sums:
    """Sums over samples of one layer: products in float32, a few thousand positions at a time, added up in float64.

    Inputs far from zero are taken less what they are in the first sample: float32 products about zero would not hold
    their spread.
    """

    def __init__(self, layer: QuantizedLayer, samples: int) -> None:
        groups, _, inputs = layer.matrix().shape
        self._layer = layer
        self._most = -(-max(_POSITIONS, _POSITIONS_PER_INPUT * inputs) // max(1, samples))
        self._count = 0
        self._pivot: Floats | None = None
        self._mean = np.zeros((groups, inputs))
        self._gram = np.zeros((groups, inputs, inputs))
        self._shift: Doubles | None = None
        self._cross: Doubles | None = None
        self._alike = True

    def add(self, number: int, x: NDArray[np.floating], original: NDArray[np.floating] | None) -> None:
        if not x.size or (original is not None and not original.size):  # of a branch that was not taken
            return
        if original is not None and x.shape != original.shape:
            self._alike = False
        if not self._alike:
            return
        phase = (number * 0.6180339887) % 1.0
        read = self._layer.inputs(x, self._most, phase)
        if not self._count:
            self._pivot = _pivot(read)
        columns = read if self._pivot is None else read - self._pivot
        rows = columns.transpose(0, 2, 1)
        self._count += columns.shape[2]
        self._mean += columns.sum(axis=2, dtype=np.float64)
        self._gram += columns @ rows
        if original is not None:
            change = read - self._layer.inputs(original, self._most, phase)
            if self._shift is None or self._cross is None:
                self._shift, self._cross = np.zeros_like(self._mean), np.zeros_like(self._gram)
            self._shift += change.sum(axis=2, dtype=np.float64)
            self._cross += change @ rows

    def moments(self) -> Moments | None:
        """``None`` where nothing was seen, not all of it was finite, or positions are not those of the float model."""
        if not self._count or not self._alike or not np.isfinite(self._gram.sum()):
            return None
        off = self._mean / self._count
        mean = off if self._pivot is None else off + self._pivot[:, :, 0]
        spread = self._gram
        spread /= self._count
        spread -= off[:, :, None] * off[:, None, :]
        if self._shift is None or self._cross is None:
            return Moments(self._count, mean, spread)
        shift, drift = self._shift / self._count, self._cross
        drift /= self._count
        drift -= shift[:, :, None] * off[:, None, :]
        return Moments(self._count, mean, spread, shift, drift)


def _pivot(columns: Floats) -> Floats | None:
    """Means of inputs (groups, inputs, positions) as (groups, inputs, 1); None where none of them is far from zero."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is found in the end
        mean = columns.mean(axis=2, dtype=np.float64, keepdims=True)
        spread = columns.var(axis=2, keepdims=True).mean(axis=1, keepdims=True)
        far = np.isfinite(mean).all() and bool((np.square(mean) > _FAR**2 * spread).any())
    return mean.astype(np.float32) if far else None
