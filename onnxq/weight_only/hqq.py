"""Half-quadratic quantization: scales and zero points that fit the bulk of a block and let outliers go. Needs no data.

Minimizes ``|W - s (q - z)|_p^p`` with p < 1 by half-quadratic splitting (Badri & Shaji, Half-Quadratic Quantization of
Large Machine Learning Models, 2023)::

    E = shrink(W - s (q - z), beta)       shrink(x) = sign(x) max(|x| - |x|^(p-1) / beta, 0)
    z = mean over the block of q - (W - E) / s

There the zero point is a real number and the scale is fixed. DequantizeLinear takes whole numbers, and symmetric grids
have none: here the scale is fitted as well, ``s = <W - E, q - z> / <q - z, q - z>``, and what is judged, and kept where
it is better than what the block had, has its zero point rounded.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from onnxq.spec import QuantSpec
from onnxq.weight_only.grid import Coded, choose, encode, round_blocks

__all__ = ["hqq"]

Floats = NDArray[np.float32]

_POWER = 0.7
_STEPS = 20
_BETA, _GROWTH = 10.0, 1.01
_TINY = np.float32(1e-12)


def hqq(matrix: Floats, spec: QuantSpec, *, either_sign: bool = False) -> Coded:
    """Quantize a matrix.

    Args:
        matrix: (outputs, inputs), finite.
        spec: blocks along axis 1.
        either_sign: see :func:`onnxq.weight_only.grid.choose`.
    """
    return encode(matrix, spec, partial(_fit, either_sign=either_sign))


def _fit(blocks: Floats, spec: QuantSpec, *, either_sign: bool) -> tuple[Floats, Floats]:
    scale, zero = choose(blocks, spec, either_sign=either_sign)
    best_scale, best_zero, least = (
        scale.copy(),
        zero.copy(),
        _cost(blocks, round_blocks(blocks, scale, zero, spec), scale),
    )
    offset = zero.copy()
    beta = _BETA
    for _ in range(_STEPS):
        ints = _round_real(blocks, scale, offset, spec)
        target = blocks - _shrink(blocks - ints * scale[..., None], beta, scale)
        energy = np.einsum("osb,osb->os", ints, ints)
        fitted = np.einsum("osb,osb->os", target, ints) / np.maximum(energy, _TINY)
        scale = np.where((energy > 0) & (np.sign(fitted) * np.sign(scale) > 0), fitted, scale).astype(np.float32)
        if not spec.symmetric:
            shift = (ints - target / scale[..., None]).mean(axis=2)
            offset = np.clip(offset + shift, spec.qmin, spec.qmax).astype(np.float32)
        zero = np.rint(offset)
        cost = _cost(blocks, round_blocks(blocks, scale, zero, spec), scale)
        better = cost < least
        for kept, new in ((best_scale, scale), (best_zero, zero), (least, cost)):
            np.copyto(kept, new, where=better)
        beta *= _GROWTH
    return best_scale, best_zero


def _round_real(blocks: Floats, scale: Floats, zero: Floats, spec: QuantSpec) -> Floats:
    """Integers less the zero point, which is a real number here."""
    ints = np.rint(blocks / scale[..., None] + zero[..., None])
    return np.asarray(np.clip(ints, spec.qmin, spec.qmax) - zero[..., None], np.float32)


def _shrink(error: Floats, beta: float, scale: Floats) -> Floats:
    """The generalized soft threshold, in units of the block's scale so that it does not depend on them."""
    unit = np.abs(scale)[..., None]
    size = np.abs(error) / unit
    kept = np.maximum(size - np.power(np.maximum(size, _TINY), _POWER - 1) / beta, 0)
    return np.asarray(np.sign(error) * kept * unit, np.float32)


def _cost(blocks: Floats, ints: Floats, scale: Floats) -> Floats:
    error = np.abs(blocks - ints * scale[..., None])
    return np.asarray(np.power(error, _POWER).sum(axis=2), np.float32)
