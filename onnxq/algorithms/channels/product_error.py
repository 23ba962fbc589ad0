"""The error of quantized products of one tensor with several weights, on some of its positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.common.quantized_layer import QuantizedLayer
from onnxq.calibration.capture import capture
from onnxq.calibration.ranges import select_range
from onnxq.calibration.statistics import SENTINEL, KeptSample, TensorStatistics
from onnxq.calibration.weights import weight_range
from onnxq.graph.layer import Channels
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec

__all__ = ["Seen", "captured", "product_errors"]

_ROWS = 512
"""Positions that products are computed at, over all samples."""
_QUIET = 0.1
"""Of the median position's signal: what a position with less is taken as."""

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Rows (positions, C) of a tensor on some samples, and the largest magnitude of each channel at all positions."""

    rows: Rows
    peak: Channels


def captured(
    draft: FloatDraft,
    axes: Mapping[str, int],
    samples: Sequence[Sequence[KeptSample]],
    sizes: Mapping[str, int],
) -> dict[str, list[Seen | None]]:
    """Tensors on each set of samples; None where one cannot be observed, or holds NaN or mask values.

    Args:
        draft: its model is run.
        axes: tensor → axis of the channels.
        samples: sets of samples.
        sizes: tensor name → number of elements.
    """
    found: dict[str, list[Seen | None]] = {name: [] for name in axes}
    for part in samples:
        here: dict[str, Seen | None] = dict.fromkeys(axes)
        for names, arrays in capture(draft.model, list(axes), part, options=draft.options, sizes=sizes):
            rows: dict[str, list[Rows]] = {name: [] for name in names}
            peaks: dict[str, list[Channels]] = {name: [] for name in names}
            for arrays_of_sample in arrays:
                for name in names:
                    flat = np.moveaxis(arrays_of_sample[name], axes[name], -1)
                    flat = flat.reshape(-1, flat.shape[-1])
                    peaks[name].append(np.abs(flat).max(axis=0, initial=0.0).astype(np.float64))
                    step = max(1, -(-len(flat) * len(part) // _ROWS))
                    rows[name].append(np.array(flat[step // 2 :: step], np.float32))
            for name in names:
                peak = np.max(peaks[name], axis=0)
                if peak.max() < SENTINEL and sum(map(len, rows[name])):
                    here[name] = Seen(np.concatenate(rows[name]), peak)
        for name, seen in here.items():
            found[name].append(seen)
    return found


def product_errors(
    layers: Sequence[QuantizedLayer], spec: QuantSpec, weights: Sequence[QuantSpec], seen: Seen, scale: Channels
) -> tuple[float, float]:
    """Noise over signal of the quantized products: of all positions together, and the mean over each by itself.

    A few positions with huge numbers (the first token of a text) decide the former, while what comes behind mostly
    looks at each position by itself.

    Args:
        layers: read the tensor.
        spec: how it is quantized.
        weights: how the weight of each layer is quantized.
        seen: the tensor.
        scale: (C,) what it is divided by, and the weights multiplied with.

    Returns:
        The two, each the mean over the layers.
    """
    x = (seen.rows / scale).astype(np.float32)
    stats = TensorStatistics("x")
    stats.update(x, 0)
    xq = fake_quantize(x, from_range(*select_range(stats, spec), spec))
    together, apart = [], []
    for layer, wspec in zip(layers, weights, strict=True):
        weight = layer.matrix()[0]
        scaled = layer.weight_of((weight * scale)[None])
        wq = layer.matrix(fake_quantize(scaled, from_range(*weight_range(scaled, wspec), wspec)))[0]
        exact = seen.rows @ weight.T
        noise = np.square(xq @ wq.T - exact).sum(axis=1, dtype=np.float64)
        signal = np.square(exact).sum(axis=1, dtype=np.float64)
        least = max(_QUIET * float(np.median(signal)), 1e-300)
        together.append(float(noise.sum()) / max(float(signal.sum()), 1e-300))
        apart.append(float(np.mean(noise / np.maximum(signal, least))))
    return max(float(np.mean(together)), 1e-300), max(float(np.mean(apart)), 1e-300)
