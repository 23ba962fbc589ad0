"""Fourier transforms of float32 as products with their tables, which onnxruntime 1.32 computes slowly and roughly.

It has a fast transform of lengths that are powers of two. Of others it adds up each frequency by itself, 93 dB from the
exact one with 400 samples in a frame; a product is as exact as others, 134 dB. The file holds one turn of the circle:
onnxruntime makes the table of it when it loads the model. Figures as in :mod:`.fast_floats`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.convolutions import elements_of
from onnxq.backends.onnxruntime.kernels import is_unpacked
from onnxq.graph.dft import dft_axis
from onnxq.graph.passes.chain import Chain
from onnxq.graph.values import constant_array, integer

__all__ = ["dft", "stft"]

_LONGEST_FRAMES = {True: 1024, False: 2048}
"""Samples of a frame, up to which a product is faster: of powers of two, and of others. Half as many where both halves
of the frequencies are asked for: 1024 samples take 1.3 to 1.6 times as long, and 1920 in 4 frames 2.2 times.
"""
_FRAMES = 16
"""Frames from which on that is so of powers of two: 1024 samples take .8 of the time in 16, 1.5 in 8, 2.9 in 4."""
_LONGEST = {True: 128, False: 1024}
"""The same of a transform by itself; the tables of longer ones come from afar."""
_ROWS = 16
"""Transforms from which on the product of them all pays for reading the table."""


def stft(chain: Chain) -> ir.Value | None:
    """Frames of a real signal as a convolution, with a step of constant length: 200 → 11 a sample with 400 in a frame.

    The result is (batch, frames, frequencies, 2), as ever.
    """
    step, window, length = integer(chain.input(1)), constant_array(chain.input(2)), integer(chain.input(3))
    size = len(window) if window is not None else length or 0
    rank, sizes = len(chain.x.shape or ()), list(chain.x.shape or ())
    unknown = any(chain.input(i) is not None and n is None for i, n in ((2, window), (3, length)))
    if step is None or unknown or rank not in (2, 3) or (rank == 3 and sizes[2] != 1) or is_unpacked(chain.x):
        return None
    half = chain.node.attributes.get_int("onesided", 1)
    longest = _LONGEST_FRAMES[_is_power_of_two(size)] // (1 if half else 2)
    if not 1 < size <= longest or (length is not None and length != size):
        return None
    if _is_power_of_two(size) and isinstance(sizes[1], int) and sizes[1] < size + (_FRAMES - 1) * step:
        return None
    kept = size // 2 + 1 if half else size
    table = _table(chain, np.arange(kept)[:, np.newaxis], np.arange(size), _turn(size, -1.0))
    if window is not None:
        table = chain.put("Mul", table, chain.constant("window", window.reshape(-1, 1)))
    taps = chain.put("Transpose", table, perm=ir.AttrInt64s("perm", (0, 2, 1)))
    taps = chain.put("Reshape", taps, chain.integers(2 * kept, 1, size))
    if rank == 3:
        lines = chain.put("Transpose", chain.x, perm=ir.AttrInt64s("perm", (0, 2, 1)))
    else:
        lines = chain.put("Unsqueeze", chain.x, chain.integers(1))
    made = chain.put("Conv", lines, taps, strides=ir.AttrInt64s("strides", (step,)))
    made = chain.put("Transpose", made, perm=ir.AttrInt64s("perm", (0, 2, 1)))
    return chain.put("Reshape", made, chain.integers(0, 0, kept, 2))


def dft(chain: Chain) -> ir.Value | None:
    """Many transforms along one axis as a matrix product: 90 → 13 of 768 real numbers each."""
    x, get = chain.x, chain.node.attributes
    sizes = list(x.shape) if x.shape is not None else []
    axis, length = dft_axis(chain.node, chain.opset), integer(chain.input(1))
    if axis is None or not sizes or (chain.input(1) is not None and length is None):
        return None
    axis %= len(sizes)
    if axis == len(sizes) - 1:
        return None
    size, parts, inverse, half = sizes[axis], sizes[-1], get.get_int("inverse", 0), get.get_int("onesided", 0)
    if not isinstance(size, int) or not isinstance(parts, int) or parts not in (1, 2):
        return None
    if length is not None and length != size:
        return None
    rows = elements_of(sizes[:-1]) // max(size, 1)
    if not 1 < size <= _LONGEST[_is_power_of_two(size)] or rows < _ROWS or (half and (inverse or parts == 2)):
        return None
    kept = size // 2 + 1 if half else size
    turn = _turn(size, 1.0 if inverse else -1.0) / (size if inverse else 1)
    same, last = [0] * (len(sizes) - 2), len(sizes) - 2
    swapped = [axis if i == last else last if i == axis else i for i in range(len(sizes))]
    if axis != last:
        x = chain.put("Transpose", x, perm=ir.AttrInt64s("perm", swapped))
    x = chain.put("Reshape", x, chain.integers(*same, size * parts))
    if parts == 2:  # what comes of a real part 1, and of an imaginary one
        turn = np.concatenate([turn, np.stack([-turn[:, 1], turn[:, 0]], axis=1)], axis=1)
    table = _table(chain, np.arange(size)[:, np.newaxis], np.arange(kept), turn)
    if parts == 2:
        table = chain.put("Reshape", table, chain.integers(size, kept, 2, 2))
        table = chain.put("Transpose", table, perm=ir.AttrInt64s("perm", (0, 2, 1, 3)))
    made = chain.put("MatMul", x, chain.put("Reshape", table, chain.integers(size * parts, 2 * kept)))
    made = chain.put("Reshape", made, chain.integers(*same, kept, 2))
    return made if axis == last else chain.put("Transpose", made, perm=ir.AttrInt64s("perm", swapped))


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


def _turn(size: int, sign: float) -> np.ndarray:
    """Cosine and sine, times a sign, of each angle of a circle of so many: (size, 2)."""
    angles = 2 * np.pi * np.arange(size) / size
    return np.stack([np.cos(angles), sign * np.sin(angles)], axis=1)


def _table(chain: Chain, rows: np.ndarray, columns: np.ndarray, turn: np.ndarray) -> ir.Value:
    """What a turn holds at the products of two numbers, (rows, columns, ...)."""
    integers = ir.DataType.INT64
    product = chain.put("Mul", chain.constant("rows", rows), chain.constant("columns", columns), dtype=integers)
    places = chain.put("Mod", product, chain.constant("size", np.asarray(len(turn))), dtype=integers)
    return chain.put("Gather", chain.constant("turn", turn.astype(np.float32)), places)
