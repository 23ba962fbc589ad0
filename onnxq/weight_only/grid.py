"""Scales and zero points of the blocks of a matrix, and its integers.

Everywhere a matrix is (outputs, inputs); a block is a run of inputs of one output, the last one filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnxq.ranged import MIN_SCALE, from_range
from onnxq.spec import PerBlock, QuantSpec, Scheme
from onnxq.weight_only.float_blocks import scales_of_floats
from onnxq.weight_only.lanes import codes_of, ends, pick, to_grid

__all__ = ["Coded", "block_size", "blocked", "choose", "chunks", "decode", "empty", "encode", "nearest", "round_blocks"]

Floats = NDArray[np.float32]
_Chooser = Callable[[Floats, QuantSpec], tuple[Floats, Floats]]

_RATIOS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.84, 0.79, 0.72)
"""Parts of the full range that are tried; the full range comes first and wins ties. For normal numbers of 4 bits the
best of a finer search is 2 % better in squared error in blocks of 32."""
_ASYMMETRIC_RATIOS = (1.0, 0.96, 1.065, 0.885, 0.975, 1.14, 0.93, 1.035)
"""The same with zero points: a longer range may have one that is nearer to a whole number."""
_SIGNED_RATIOS = (1.0, 1.11, 1.025, 0.965, 0.93, 0.9, 0.87, 0.825)
"""The same for scales of either sign, where the full range ends at the integer furthest from 0."""
_FEWEST = 2
_FEWEST_SIGNED_RATIOS = (1.0, 0.78, 0.68, 0.88, 0.58, 0.73, 0.63, 0.5)
"""The same at 2 bits: of normal and of heavy-tailed numbers in blocks of 32 to 128, the best lies far inside."""
_FEWEST_ASYMMETRIC_RATIOS = (1.0, 0.72, 0.62, 0.8, 0.54, 0.67, 0.58, 0.47)
_SEARCH_BELOW = 8
_CHUNK = 1 << 20
"""Numbers of a matrix worked on at a time."""
_PIECE = 1 << 18
"""Numbers that are looked for scales and rounded while they lie in a cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A matrix as integers.

    Attributes:
        spec: how it is quantized: blocks along axis 1.
        codes: int8 (symmetric) or uint8, (outputs, inputs); of floating-point numbers in halves, see
            :mod:`onnxq.grids.float4`.
        scale: float32, (outputs, blocks), of an integer of ``codes``; below 0 only where that was asked for.
        zero: of the type of ``codes``, (outputs, blocks).
        unit: what the scales of floating-point blocks are 8-bit floating-point numbers times of, a power of two.
    """

    spec: QuantSpec
    codes: NDArray[np.int8] | NDArray[np.uint8]
    scale: Floats
    zero: NDArray[np.int8] | NDArray[np.uint8]
    unit: float = 1.0


def block_size(spec: QuantSpec) -> int:
    """Inputs of a block."""
    assert isinstance(spec.granularity, PerBlock)
    return spec.granularity.size


def blocked(matrix: Floats, size: int) -> Floats:
    """A matrix as (outputs, blocks, size), the last block filled up with zeros; a copy only where it must be one."""
    outputs, inputs = matrix.shape
    short = -inputs % size
    if short:
        matrix = np.pad(matrix, ((0, 0), (0, short)))
    return np.ascontiguousarray(matrix).reshape(outputs, -1, size)


def round_blocks(blocks: Floats, scale: Floats, zero: Floats, spec: QuantSpec) -> Floats:
    """Nearest integers less the zero point, float32.

    Args:
        blocks: (outputs, blocks, size).
        scale: (outputs, blocks).
        zero: (outputs, blocks), whole numbers.
        spec: the grid.
    """
    return to_grid(blocks / scale[..., None], zero[..., None], spec)


def choose(blocks: Floats, spec: QuantSpec, *, either_sign: bool = False) -> tuple[Floats, Floats]:
    """Scale and zero point of each block: the full range at 8 bits, below that the part of it of least squared error.

    Args:
        blocks: (outputs, blocks, size), finite.
        spec: the grid.
        either_sign: a symmetric grid may be mirrored by a scale below 0, so that the largest number of a block lies on
            the longer side: all 16 integers of 4 bits count then, not 15. Where it is searched, below 8 bits.

    Returns:
        Scale and zero point, float32, (outputs, blocks).
    """
    size = blocks.shape[2]
    scale, zero = choose_lanes(blocks.reshape(-1, size).T[None], spec, either_sign=either_sign)
    return scale.reshape(blocks.shape[:2]), zero.reshape(blocks.shape[:2])


def choose_lanes(lanes: Floats, spec: QuantSpec, *, either_sign: bool = False) -> tuple[Floats, Floats]:
    """As :func:`choose`, of blocks as :mod:`onnxq.weight_only.lanes` has them.

    Args:
        lanes: (groups, size, count), finite.
        spec: the grid.
        either_sign: as there.

    Returns:
        Scale and zero point, float32, (groups, count).
    """
    if spec.scheme is Scheme.FLOAT4:
        return scales_of_floats(lanes, spec)
    low, high = ends(lanes)
    found = _numbers(low, high, spec)
    if spec.bits >= _SEARCH_BELOW:
        return found
    tried = [*_tries(low, high, spec, either_sign=either_sign and spec.symmetric), found]
    scales, zeros = (np.stack(numbers) for numbers in zip(*tried, strict=True))
    best = pick(lanes, scales[:-1], zeros[:-1], spec)[None]
    return np.take_along_axis(scales, best, 0)[0], np.take_along_axis(zeros, best, 0)[0]


def _tries(low: Floats, high: Floats, spec: QuantSpec, *, either_sign: bool) -> Iterator[tuple[Floats, Floats]]:
    """Scales and zero points that cover more and less of the ranges."""
    fewest = spec.bits == _FEWEST
    if not spec.symmetric:
        for ratio in map(np.float32, _FEWEST_ASYMMETRIC_RATIOS if fewest else _ASYMMETRIC_RATIOS):
            yield _numbers(low * ratio, high * ratio, spec)
        return
    zero = np.zeros_like(low)
    if not either_sign:
        reach = np.maximum(np.maximum(-low, high), np.float32(0))
        for ratio in map(np.float32, _RATIOS):
            yield _symmetric_scale(reach * ratio, spec), zero
        return
    furthest = np.where(high > -low, high, low) / np.float32(spec.qmin)
    furthest = np.where(np.abs(furthest) < MIN_SCALE, np.float32(MIN_SCALE), furthest)
    for ratio in map(np.float32, _FEWEST_SIGNED_RATIOS if fewest else _SIGNED_RATIOS):
        yield furthest * ratio, zero


def _symmetric_scale(reach: Floats, spec: QuantSpec) -> Floats:
    """What :func:`onnxq.ranged.from_range` gives for ranges from ``-reach`` to ``reach``, without its float64.

    A quotient of two float32 is the same rounded once or by way of float64.

    Args:
        reach: 0 or more.
        spec: symmetric around 0.
    """
    scale = np.where(reach == 0, np.float32(1), reach) / np.float32(spec.qmax)
    return np.asarray(np.maximum(scale, np.float32(MIN_SCALE)), np.float32)


def _numbers(low: Floats, high: Floats, spec: QuantSpec) -> tuple[Floats, Floats]:
    numbers = from_range(low, high, spec)
    return numbers.scale, numbers.zero_point.astype(np.float32)


def chunks(outputs: int, inputs: int, most: int = _CHUNK) -> Iterator[slice]:
    """Rows of a matrix, so many at a time that work on them stays small."""
    step = max(1, most // max(1, inputs))
    for start in range(0, outputs, step):
        yield slice(start, min(start + step, outputs))


def nearest(matrix: Floats, spec: QuantSpec, *, either_sign: bool = False) -> Coded:
    """Round to nearest.

    Args:
        matrix: (outputs, inputs), finite; may be a view of any strides.
        spec: blocks along axis 1.
        either_sign: see :func:`choose`.
    """
    outputs, inputs = matrix.shape
    size = block_size(spec)
    across = matrix.T.flags.c_contiguous and not matrix.flags.c_contiguous
    made = empty(spec, outputs, inputs, across=across)
    for rows, columns in _pieces(outputs, inputs, size, across=across):
        part, codes = matrix[rows, columns], made.codes[rows, columns]
        lanes = _lanes_of(part, size, across=across)
        scale, zero = choose_lanes(lanes, spec, either_sign=either_sign)
        whole = part.shape[1] % size == 0
        filled = codes if whole else np.empty((len(part), -(-part.shape[1] // size) * size), made.codes.dtype)
        codes_of(lanes, scale, zero, spec, _lanes_of(filled, size, across=across))
        if not whole:
            codes[:] = filled[:, : part.shape[1]]
        at = slice(columns.start // size, -(-columns.stop // size))
        for kept, numbers in ((made.scale, scale), (made.zero, zero)):
            kept[rows, at] = numbers.T if across else numbers.reshape(len(part), -1)
    return made


def _pieces(outputs: int, inputs: int, size: int, *, across: bool) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of a matrix that are worked on together, so few that they fit a cache; no block is cut.

    Args:
        outputs: its rows.
        inputs: its columns.
        size: of a block.
        across: whether inputs lie along axis 0 in memory.
    """
    if not across:
        for rows in chunks(outputs, inputs, _PIECE):
            yield rows, slice(0, inputs)
        return
    wide = min(outputs, _PIECE // size)
    step = max(1, _PIECE // max(1, size * wide)) * size
    for start in range(0, inputs, step):
        for first in range(0, outputs, max(1, wide)):
            yield slice(first, min(first + wide, outputs)), slice(start, min(start + step, inputs))


def _lanes_of(part: NDArray[Any], size: int, *, across: bool) -> NDArray[Any]:
    """Blocks of some rows as lanes, the last one filled up with zeros."""
    if short := -part.shape[1] % size:
        part = np.pad(part, ((0, 0), (0, short)))
    lanes: NDArray[Any] = part.T.reshape(-1, size, len(part)) if across else part.reshape(-1, size).T[None]
    return lanes


def encode(matrix: Floats, spec: QuantSpec, numbers: _Chooser) -> Coded:
    """Round to nearest with given rules for scales and zero points.

    Args:
        matrix: (outputs, inputs).
        spec: blocks along axis 1.
        numbers: blocks (outputs, blocks, size) and spec to scale and zero point, as :func:`choose`.
    """
    outputs, inputs = matrix.shape
    size = block_size(spec)
    kind = np.int8 if spec.signed else np.uint8
    made = empty(spec, outputs, inputs)
    for rows in chunks(outputs, inputs):
        blocks = blocked(matrix[rows], size)
        scale, zero = numbers(blocks, spec)
        codes = round_blocks(blocks, scale, zero, spec)
        codes += zero[..., None]
        made.codes[rows] = codes.reshape(len(codes), -1)[:, :inputs].astype(kind)
        made.scale[rows], made.zero[rows] = scale, zero.astype(kind)
    return made


def empty(spec: QuantSpec, outputs: int, inputs: int, *, across: bool = False) -> Coded:
    """A matrix whose numbers are still to be filled in.

    Args:
        spec: blocks along axis 1.
        outputs: its rows.
        inputs: its columns.
        across: lay inputs along axis 0 in memory.
    """
    kind = np.int8 if spec.signed else np.uint8
    blocks = -(-inputs // block_size(spec))
    order: Literal["C", "F"] = "F" if across else "C"
    return Coded(
        spec,
        np.empty((outputs, inputs), kind, order),
        np.empty((outputs, blocks), np.float32, order),
        np.empty((outputs, blocks), kind, order),
    )


def decode(coded: Coded, rows: slice = slice(None)) -> Floats:
    """The float32 numbers that rows of a matrix stand for, as DequantizeLinear gives them."""
    codes, inputs = coded.codes[rows], coded.codes.shape[1]
    size = block_size(coded.spec)
    spread = np.repeat(coded.scale[rows], size, axis=1)[:, :inputs]
    zero = np.repeat(coded.zero[rows], size, axis=1)[:, :inputs]
    result = codes.astype(np.float32)
    result -= zero
    result *= spread
    return result
