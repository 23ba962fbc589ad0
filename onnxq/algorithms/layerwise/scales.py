"""Scales of weights chosen for the error of a layer's output: searched for, or fitted to integers that are there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.common.quantized_layer import QuantizedLayer
from onnxq.algorithms.layerwise.rounding import Grid
from onnxq.calibration.weights import weight_range
from onnxq.qparams import QParams
from onnxq.ranged import from_range
from onnxq.spec import PerBlock

__all__ = ["fit_scales", "search_scales"]

Doubles = NDArray[np.float64]

_STRETCH = 0.5, 2.0  # of a scale that is fitted
_FINEST = 8  # bits: from here on a weight's range is that of its values


def search_scales(
    layer: QuantizedLayer, qparams: QParams, target: Doubles, hessian: Doubles, *, lowest: float = 0.3, steps: int = 40
) -> QParams:
    """For every scale of a weight, the one of least output error among fractions of the full range.

    Args:
        layer: the layer.
        qparams: of its weight as they are now; they win ties.
        target: what is rounded, (groups, outputs, inputs).
        hessian: second moments of the input, (groups, inputs, inputs), or only their diagonal, (groups, inputs).
            Where a row has several scales, moments between the inputs of different ones are left out.
        lowest: the smallest fraction tried, above 0 and below 1.
        steps: how many are tried, from 1 down to ``lowest``, evenly spaced.
    """
    if qparams.spec.reduced:
        return qparams  # smaller ones may overflow; and at 8 bits next to nothing is gained
    owner = _owners(layer, qparams)
    if hessian.ndim == 3 and isinstance(qparams.spec.granularity, PerBlock):
        hessian = hessian * (owner[:, 0, :, None] == owner[:, 0, None, :])
    moments, wanted = hessian.astype(np.float32), target.astype(np.float32)
    low, high = weight_range(
        layer.weight_of(target), replace(qparams.spec, bits=max(_FINEST, qparams.spec.bits), range="minmax")
    )
    best = qparams
    least = _errors(layer, qparams, wanted, moments, owner)
    for ratio in np.linspace(1.0, lowest, steps):
        tried = from_range(low * ratio, high * ratio, qparams.spec)
        error = _errors(layer, tried, wanted, moments, owner)
        better = (error < least).reshape(best.scale.shape)
        least = np.minimum(error, least)
        best = QParams(
            best.spec,
            np.asarray(np.where(better, tried.scale, best.scale), np.float32),
            np.asarray(np.where(better, tried.zero_point, best.zero_point), np.int64),
        )
    return best


def fit_scales(
    layer: QuantizedLayer, qparams: QParams, weight: Doubles, target: Doubles, hessian: Doubles
) -> tuple[QParams, Doubles]:
    """The scales of least output error for a rounded weight whose integers stay.

    Of ``tr((s Q - W) H (s Q - W)^T)`` the best ``s`` of a row is ``Q H W^T / Q H Q^T``. It is not needed of blocks and
    powers of two, whose scales stay.

    Args:
        layer: the layer.
        qparams: numbers that the weight is rounded with.
        weight: on that grid, (groups, outputs, inputs).
        target: what is rounded, the same shape.
        hessian: second moments of the input, (groups, inputs, inputs).

    Returns:
        The numbers, and the weight on their grid.
    """
    if qparams.spec.power_of_two or isinstance(qparams.spec.granularity, PerBlock):
        return qparams, weight
    moved = weight @ hessian
    wanted, had = (np.einsum("goi,goi->go", moved, of).reshape(-1) for of in (target, weight))
    if not qparams.scale.ndim:
        wanted, had = wanted.sum(), had.sum()
    stretch = np.where((wanted > 0) & (had > 0), wanted / np.where(had > 0, had, 1.0), 1.0).clip(*_STRETCH)
    fitted = replace(qparams, scale=np.asarray(qparams.scale * stretch, np.float32).reshape(qparams.scale.shape))
    steps = np.rint(weight / Grid.of(layer, qparams).scale)
    return fitted, steps * Grid.of(layer, fitted).scale


def _owners(layer: QuantizedLayer, qparams: QParams) -> NDArray[np.int64]:
    """Which scale each entry of the weight has: a flat index, (groups, outputs, inputs)."""
    numbered = np.arange(qparams.scale.size, dtype=np.float32).reshape(qparams.scale.shape)
    rows, _ = layer.rows(replace(qparams, scale=numbered))
    return np.broadcast_to(rows, layer.matrix().shape).astype(np.int64)


def _errors(
    layer: QuantizedLayer,
    qparams: QParams,
    target: NDArray[np.float32],
    moments: NDArray[np.float32],
    owner: NDArray[np.int64],
) -> Doubles:
    """Error that belongs to each scale."""
    change = Grid.of(layer, qparams).nearest(target.astype(np.float64)).astype(np.float32) - target
    product = change @ moments if moments.ndim == 3 else change * moments[:, None, :]
    product *= change
    found = np.bincount(owner.reshape(-1), weights=product.reshape(-1), minlength=qparams.scale.size)
    return found.astype(np.float64)
