"""Parts of a model quantized one at a time, in a bounded number of runs: all of them, or groups and then the worst."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithms.bias_correction import correct_biases
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers
from onnxq.backend import Backend
from onnxq.calibration.capture import capture
from onnxq.calibration.roles import few, spread
from onnxq.calibration.sizes import sizes_on
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.effort import algorithms_of
from onnxq.errors import DataError
from onnxq.measuring.probe import Part, Probe, Setting
from onnxq.options import Options
from onnxq.qparams import QParams, fake_quantize

__all__ = ["Record", "local_noise", "make_probe", "runs_needed", "survey"]

_LOCAL_SAMPLES = 2
_LOCAL_POSITIONS = 1024
"""Positions of a layer's input that its own error is measured on, of each sample."""


@dataclass(frozen=True, slots=True)
class Record:
    """What parts do to the outputs when they alone are quantized.

    Attributes:
        parts: the parts, one unless there were too many to measure each alone; neighbours in the graph.
        noise: width → output → noise over signal, a power ratio.
    """

    parts: tuple[Part, ...]
    noise: Mapping[int, Mapping[str, float]]

    def worst(self, bits: int) -> float:
        """Noise over signal at the worst output."""
        return max(self.noise[bits].values())


def make_probe(
    model: ir.Model,
    target: Backend,
    options: Options,
    statistics: Statistics,
    samples: Sequence[KeptSample],
    keep_float: Mapping[str, str] | None = None,
) -> Probe:
    """A probe of what would be quantized, decided with the data; biases are corrected where the effort corrects them.

    Args:
        model: the float model, normalized; left unchanged.
        target: the backend.
        options: bits, exclusions and so on.
        statistics: of this model.
        samples: what to measure on.
        keep_float: node name → reason, for nodes that stay float whatever the data shows.

    Raises:
        DataError: the samples have no float output.
    """
    if not any(values.dtype.kind == "f" for values in samples[0].outputs.values()):
        hint = "Take what makes integers or a sequence of the last float tensors (ArgMax, say) out of the model first"
        raise DataError("no output of the model is float, so nothing can be measured", hint=hint)
    plan = decide(Decider(model, target, options, statistics, keep_float=keep_float)).plan
    correct = None
    if any(text.startswith("bias_correction") for text in algorithms_of(options)):
        correct = partial(
            correct_biases,
            samples=few(statistics.kept),
            sizes=sizes_on(model, statistics),
            options=options,
        )
    return Probe(model, plan, target, options, statistics, samples, correct)


def runs_needed(parts: int, widths: int, limit: int) -> int:
    """How many measurements :func:`survey` makes at most."""
    return parts * widths if parts * widths <= limit else max(limit, widths)


def survey(
    probe: Probe,
    parts: Sequence[Part],
    widths: Sequence[int],
    limit: int,
    advance: Callable[[int], None],
) -> list[Record]:
    """Measure each part alone at each width.

    Where that would take more than ``limit`` measurements, half of them go to groups of neighbours, and the other half
    to splitting the group that does most harm at the narrowest width, again and again.

    Args:
        probe: measures.
        parts: of one role, in the order of the graph.
        widths: in bits.
        limit: largest number of measurements; at least one for each width is made.
        advance: told how many were made.

    Returns:
        Records that together hold every part once, in the order given.
    """
    done = 0

    def measured(group: Sequence[Part]) -> Record:
        nonlocal done
        noise = {}
        for bits in widths:
            noise[bits] = probe.noise([Setting(part, bits) for part in group])
            done += 1
            advance(done)
        return Record(tuple(group), noise)

    count = len(parts)
    if not count:
        return []
    if count * len(widths) > limit:
        count = max(1, limit // (2 * len(widths)))
    cuts = [round(k * len(parts) / count) for k in range(count + 1)]
    found = {start: measured(parts[start:end]) for start, end in pairwise(cuts)}
    worst = [(-record.worst(min(widths)), start) for start, record in found.items() if len(record.parts) > 1]
    heapq.heapify(worst)
    while worst and done + 2 * len(widths) <= limit:
        _, start = heapq.heappop(worst)
        group = found[start].parts
        half = len(group) // 2
        for begin, members in ((start, group[:half]), (start + half, group[half:])):
            found[begin] = measured(members)
            if len(members) > 1:
                heapq.heappush(worst, (-found[begin].worst(min(widths)), begin))
    return [found[start] for start in sorted(found)]


def local_noise(probe: Probe, widths: Sequence[int]) -> dict[str, dict[int, float]]:
    """Noise over signal at the output of each layer itself, its input in float, on two samples.

    For a weight ``W`` with error ``D`` and the second moment ``H`` of the layer's input this is
    ``tr(D H D^T) / tr(W H W^T)``: half the trace term of the layer's own squared error with the Hessian ``2 H``
    (Hassibi & Stork, Optimal Brain Surgeon, 1993), which needs no gradients. Biases are not corrected in it.

    Returns:
        Node → width → power ratio, for convolutions and products with a constant matrix.
    """
    layers = quantized_layers(probe.model, probe.plan, stored=True)
    errors = {layer.name: {bits: _error(layer, probe.qparams(layer.site, bits)) for bits in widths} for layer in layers}
    signal = dict.fromkeys(errors, 0.0)
    noise = {name: dict.fromkeys(widths, 0.0) for name in errors}
    names = list(dict.fromkeys(layer.data.name or "" for layer in layers))
    samples = spread(probe.samples, _LOCAL_SAMPLES)
    sizes = sizes_on(probe.model, probe.statistics)
    for _, runs in capture(probe.model, names, samples, options=probe.options, sizes=sizes):
        for arrays in runs:
            for layer in layers:
                x = arrays.get(layer.data.name or "")
                if x is None or not x.size:
                    continue
                columns = layer.inputs(x, _LOCAL_POSITIONS)
                signal[layer.name] += _power(layer.matrix() @ columns)
                for bits, error in errors[layer.name].items():
                    noise[layer.name][bits] += _power(error @ columns)
    return {
        name: {bits: power / signal[name] for bits, power in found.items()}
        for name, found in noise.items()
        if signal[name] > 0
    }


def _error(layer: QuantizedLayer, qparams: QParams) -> NDArray[np.float32]:
    weight = layer.array()
    return layer.matrix(fake_quantize(weight, qparams) - weight)


def _power(array: NDArray[np.float32]) -> float:
    flat = array.ravel()
    return float(np.dot(flat, flat))
