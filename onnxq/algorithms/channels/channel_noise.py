"""What quantizing does to the output of a layer, estimated channel by channel, without running the model.

Errors of weights and activations are taken as independent of each other and of the data. For a pair of layers
``y = f(W1 x)``, ``z = W2 y`` the noise power of ``z`` is, with ``P(.)`` the mean square of a channel::

    sum_c (P(dW1 x)_c + P(dy)_c) |W2_c|^2  +  sum_c P(y_c) |dW2_c|^2

where ``P(dy)_c`` is ``scale^2 / 12`` for every value that is not zero, and never more than ``P(y_c)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithms.channels.pairs import channel_rows
from onnxq.calibration.capture import capture
from onnxq.calibration.statistics import SENTINEL, KeptSample
from onnxq.calibration.weights import weight_range
from onnxq.graph.layer import Layer
from onnxq.grids import float8, logarithmic
from onnxq.options import Options
from onnxq.plan import Edge, Plan
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec, Scheme

__all__ = [
    "ChannelStats",
    "Channels",
    "Specs",
    "activation_noise",
    "input_gain",
    "measure_channels",
    "output_noise",
    "weight_error",
]

Channels = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStats:
    """What is known of the channels of a tensor, each (C,) float64.

    Attributes:
        low: smallest value, at most 0.
        high: largest value, at least 0.
        power: mean square.
        active: share of the values that are not zero.
    """

    low: Channels
    high: Channels
    power: Channels
    active: Channels

    @property
    def magnitude(self) -> Channels:
        """Largest magnitude of each channel."""
        return np.maximum(-self.low, self.high)

    def divided(self, scale: Channels) -> ChannelStats:
        """Of the tensor divided by a positive scale a channel."""
        return ChannelStats(self.low / scale, self.high / scale, self.power / scale**2, self.active)


class Specs:
    """How the inputs of nodes are quantized in a plan."""

    def __init__(self, plan: Plan) -> None:
        self._sites = plan.by_edge()

    def of(self, node: ir.Node, index: int) -> QuantSpec | None:
        """How input ``index`` of a node is quantized; None where it stays float."""
        site = self._sites.get(Edge(node.name or "", index))
        return site.spec if site is not None else None


def measure_channels(
    model: ir.Model,
    tensors: Mapping[str, int],
    samples: Sequence[KeptSample],
    *,
    options: Options,
    sizes: Mapping[str, int],
) -> dict[str, ChannelStats]:
    """Run a model over samples and take the statistics of channels.

    Args:
        model: left unchanged.
        tensors: name → axis of the channels, negative from the end.
        samples: at least one.
        options: providers and the library of custom operators.
        sizes: tensor name → number of elements.

    Returns:
        Tensor name → its channels; tensors that cannot be observed, or hold NaN, infinities or mask values, or whose
        number of channels varies, are missing.
    """
    found: dict[str, ChannelStats] = {}
    for names, arrays in capture(model, list(tensors), samples, options=options, sizes=sizes):
        seen: dict[str, list[ChannelStats | None]] = {name: [] for name in names}
        for sample in arrays:
            for name in names:
                seen[name].append(_channels(sample[name], tensors[name]))
        for name, parts in seen.items():
            known = [part for part in parts if part is not None]
            if known and len(known) == len(parts) and len({part.low.shape for part in known}) == 1:
                found[name] = _merged(known)
    return found


def _channels(array: NDArray[np.floating], axis: int) -> ChannelStats | None:
    if array.ndim < 2 or not array.size:
        return None
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    if not np.abs(rows).max() < SENTINEL:
        return None
    power = np.einsum("cp,cp->c", rows, rows, dtype=np.float64) / rows.shape[1]
    low, high = np.minimum(rows.min(axis=1), 0.0), np.maximum(rows.max(axis=1), 0.0)
    active = np.count_nonzero(rows, axis=1) / rows.shape[1]
    return ChannelStats(low.astype(np.float64), high.astype(np.float64), power, active)


def _merged(parts: Sequence[ChannelStats]) -> ChannelStats:
    return ChannelStats(
        np.min([p.low for p in parts], axis=0),
        np.max([p.high for p in parts], axis=0),
        np.mean([p.power for p in parts], axis=0),
        np.mean([p.active for p in parts], axis=0),
    )


def weight_error(weight: NDArray[np.floating], spec: QuantSpec | None) -> NDArray[np.float32] | None:
    """What rounding does to a weight, of its shape; None where it stays float."""
    if spec is None:
        return None
    array = np.asarray(weight, np.float32)
    return fake_quantize(array, from_range(*weight_range(array, spec), spec)) - array


def activation_noise(stats: ChannelStats, spec: QuantSpec | None) -> Channels:
    """Mean square error of each channel of a tensor that is quantized with one scale."""
    if spec is None:
        return np.zeros_like(stats.power)
    if spec.scheme is not Scheme.UNIFORM:
        grid = logarithmic if spec.scheme is Scheme.LOGARITHMIC else float8
        return np.asarray(stats.power * grid.RELATIVE_NOISE)
    step = float(from_range(stats.low.min(), stats.high.max(), spec).scale)
    return np.minimum(stats.active * step**2 / 12.0, stats.power)


def output_noise(layer: Layer, error: NDArray[np.floating] | None, power: Channels) -> Channels:
    """Mean square error of each output channel, (M,), from the error of the weight.

    Args:
        layer: the layer.
        error: of the shape of its weight; None for none.
        power: mean square of each input channel, (C,).
    """
    if error is None:
        return np.zeros(layer.out_channels())
    rows = channel_rows(layer, error)
    squares = np.einsum("oit,oit->oi", rows, rows)
    groups = layer.groups if layer.is_conv else 1
    per_group = power.reshape(groups, 1, -1)
    return np.asarray((squares.reshape(groups, -1, squares.shape[1]) * per_group).sum(axis=2).reshape(-1))


def input_gain(layer: Layer, weight: NDArray[np.floating], importance: Channels) -> Channels:
    """What noise of mean square 1 in each input channel, (C,), makes at the output, summed over its channels.

    Args:
        layer: the layer.
        weight: of the shape of its weight.
        importance: what noise of mean square 1 in each output channel counts, (M,).
    """
    rows = channel_rows(layer, weight)
    squares = np.einsum("oit,oit->oi", rows, rows)
    groups = layer.groups if layer.is_conv else 1
    weighted = squares * importance[:, None]
    return np.asarray(weighted.reshape(groups, -1, squares.shape[1]).sum(axis=1).reshape(-1))
