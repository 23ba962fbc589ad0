"""Weights of convolutions rounded so that the errors within a kernel make up for each other.

What lies under the taps of a kernel is alike: neighbouring pixels, neighbouring moments. Rounding to nearest leaves an
error of ``sqrt(taps / 12)`` steps in a kernel's sum, which all outputs share wherever its input is smooth. Here the
weights are rounded so that ``e^T R e`` is small for the errors ``e`` of a kernel, with correlations ``R`` that fall by
a fixed factor from tap to tap. No data is needed, and at 8 bits as at 4 it is worth some dB.

SQuant (Guo et al., SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation, 2022) brings the sums
of the errors of kernels below half a step; a correlation below 1 also counts which taps are far from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers
from onnxq.plan import Plan
from onnxq.qparams import QParams, fake_quantize
from onnxq.spec import PerBlock, QuantSpec, Scheme

__all__ = ["round_kernels"]

Floats = NDArray[np.float32]

_CORRELATION = 0.6
"""Of the inputs of neighbouring taps. On real networks 0.5 to 0.8 gain alike; the higher it is, the more is lost where
neighbours have nothing in common."""
_MOST_TAPS = 256
_BITS = 8
"""Weights of more bits lose nothing by rounding."""
_SWEEPS = 3
"""Passes over the taps; a fourth changes next to nothing."""
_ROWS = 1 << 15
"""Kernels worked on at a time."""


def round_kernels(
    model: ir.Model,
    plan: Plan,
    numbers: Mapping[str, QParams],
    known: MutableMapping[str, tuple[QParams, ir.TensorProtocol]],
) -> int:
    """Round the weights of convolutions with kernels of several taps.

    Args:
        model: a copy of the float model, whose weights are given numbers on their grids.
        plan: where it is quantized.
        numbers: parameters by site name.
        known: node → parameters of its weight and the weight rounded with them, for a model that is planned again;
            added to.

    Returns:
        Number of layers.
    """
    tied = {site.tied_to for site in plan.sites}
    done = 0
    for layer in quantized_layers(model, plan, stored=True):
        site, qp = plan.by_name[layer.site], numbers.get(layer.site)
        shared = len(layer.weight.uses()) > 1 or layer.weight.is_graph_output() or site.tied_to or site.name in tied
        if qp is None or shared or not _has_kernels(layer) or not _rounds(qp.spec):
            continue
        if layer.name not in known or known[layer.name][0] != qp:
            known[layer.name] = qp, ir.tensor(_rounded(layer, qp), name=layer.weight.name)
        layer.weight.const_value = known[layer.name][1]
        done += 1
    return done


def _has_kernels(layer: QuantizedLayer) -> bool:
    return layer.node.op_type == "Conv" and 1 < math.prod(layer.array().shape[2:]) <= _MOST_TAPS


def _rounds(spec: QuantSpec) -> bool:
    """Whether numbers like these round a kernel to one grid, and lose something by it."""
    return spec.bits <= _BITS and spec.scheme is Scheme.UNIFORM and not isinstance(spec.granularity, PerBlock)


def _rounded(layer: QuantizedLayer, qp: QParams) -> Floats:
    weight = layer.array()
    kernel = weight.shape[2:]
    rows = weight.reshape(-1, math.prod(kernel))
    of_matrix = (np.broadcast_to(part, layer.matrix().shape) for part in layer.rows(qp))
    scale, zero = (layer.weight_of(part).reshape(rows.shape)[:, 0] for part in of_matrix)
    apart = _correlations(layer.node, kernel)
    made = np.empty_like(rows)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        low, high = qp.spec.qmin - zero[part], qp.spec.qmax - zero[part]
        low = np.maximum(low, -high) if qp.spec.symmetric else low
        made[part] = (_evened(np.divide(rows[part].T, scale[part], order="C"), apart, low, high) * scale[part]).T
    return fake_quantize(made.reshape(weight.shape), qp)


def _evened(steps: Floats, apart: Floats, low: Floats, high: Floats) -> Floats:
    """Kernels rounded by coordinate descent: each tap in turn takes the best integer, the others given.

    Zeros stay: a sparse weight stays sparse. So do the ends of the grid: a tool that takes the scale from the largest
    weight finds the same one.

    Args:
        steps: the kernels in steps of their grids, (taps, kernels).
        apart: correlations, (taps, taps), with ones on the diagonal.
        low: the lowest integer of each kernel.
        high: the highest.
    """
    made = np.clip(np.rint(steps), low, high)
    fixed = (steps == 0) | (made == low) | (made == high)
    error = made - steps
    for _ in range(_SWEEPS):
        for tap, wanted in enumerate(steps):
            best = np.clip(np.rint(made[tap] - apart[tap] @ error), low, high)
            made[tap] = np.where(fixed[tap], made[tap], best)
            error[tap] = made[tap] - wanted
    return made


def _correlations(node: ir.Node, kernel: tuple[int, ...]) -> Floats:
    """How alike the inputs of two taps are, (taps, taps)."""
    dilations = node.attributes.get_ints("dilations", None) or [1] * len(kernel)
    axes = np.meshgrid(*(np.arange(size) * d for size, d in zip(kernel, dilations, strict=True)), indexing="ij")
    places = np.stack(axes, axis=-1).reshape(-1, len(kernel))
    return np.asarray(_CORRELATION ** np.abs(places[:, None] - places[None]).sum(axis=2), np.float32)
