"""Tensors of a TensorFlow Lite graph, and where the axes of the ONNX tensor are that each of them holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = [
    "Grid",
    "Order",
    "Placed",
    "RefusedError",
    "broadcast",
    "last",
    "own_grid",
    "plain",
    "plain_of",
    "reordered",
    "same_bytes",
    "without",
]

Order = tuple[int, ...]
"""Axis k of the TensorFlow Lite tensor is axis ``order[k]`` of the ONNX tensor."""


class RefusedError(Exception):
    """Why a node cannot be said in TensorFlow Lite; never shown to a user by itself."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Scales and zero points of an integer tensor.

    Attributes:
        scale: float32, one or one for each channel.
        zero_point: int64, as many.
        axis: of the TensorFlow Lite tensor, that the channels are along.
        dtype: of activations and weights, INT8 or INT16.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0
    dtype: ir.DataType = ir.DataType.INT8

    @staticmethod
    def of(
        scale: NDArray[np.generic],
        zero_point: NDArray[np.generic],
        axis: int = 0,
        dtype: ir.DataType = ir.DataType.INT8,
    ) -> Grid:
        """The grid of a quantizer's numbers."""
        return Grid(tuple(map(float, scale.reshape(-1))), tuple(map(int, zero_point.reshape(-1))), axis, dtype)

    @property
    def bits(self) -> int:
        """Width of the integers."""
        return self.dtype.bitwidth

    @property
    def lowest(self) -> int:
        """The lowest integer."""
        return -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        """The highest integer."""
        return (1 << (self.bits - 1)) - 1


_OWN: Mapping[tuple[str, int], tuple[float, int]] = {
    ("Sigmoid", 8): (1 / 256, -128),
    ("Softmax", 8): (1 / 256, -128),
    ("Tanh", 8): (1 / 128, 0),
    ("Sigmoid", 16): (1 / 32768, 0),
    ("Softmax", 16): (1 / 32768, 0),
    ("Tanh", 16): (1 / 32768, 0),
}
"""Operator of ONNX, bits → scale and zero point of the only grid that its kernel in integers writes."""


def own_grid(op: str, bits: int) -> tuple[float, int] | None:
    """Scale and zero point that an operator's kernel writes, whatever is asked for; None where it writes any."""
    return _OWN.get((op, bits))


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the graph.

    Attributes:
        index: its number there.
        shape: as it is there.
        order: see :data:`Order`.
        dtype: of its elements.
        grid: of integers that stand for real numbers, else None.
    """

    index: int
    shape: tuple[int, ...]
    order: Order
    dtype: ir.DataType
    grid: Grid | None = None

    @property
    def given(self) -> tuple[int, ...]:
        """The shape of the ONNX tensor."""
        return tuple(size for _, size in sorted(zip(self.order, self.shape, strict=True)))


def plain(rank: int) -> Order:
    """The axes as ONNX has them."""
    return tuple(range(rank))


def last(rank: int) -> Order:
    """Channels, the second axis, at the end, as TensorFlow Lite's convolutions and pools have them."""
    return (0, *range(2, rank), 1) if rank > 2 else plain(rank)


def plain_of(value: ir.Value | None) -> Order:
    """The axes of a tensor as ONNX has them."""
    assert value is not None and value.shape is not None
    return plain(len(value.shape))


def reordered(sizes: Iterable[int], order: Sequence[int]) -> tuple[int, ...]:
    """Sizes of an ONNX tensor in another order."""
    known = list(sizes)
    return tuple(known[axis] for axis in order)


def same_bytes(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a transposition moves axes of one element only, or there is nothing to move."""
    moved = [axis for axis in permutation if shape[axis] != 1]
    return moved == sorted(moved) or math.prod(shape) == 0


def without(order: Order, axes: Sequence[int]) -> Order:
    """What is left of an order when axes are taken away."""
    left = [axis for axis in order if axis not in axes]
    return tuple(sorted(left).index(axis) for axis in left)


def broadcast(operands: Sequence[Placed]) -> tuple[int, ...]:
    """The shape that broadcasting makes of tensors.

    Raises:
        RefusedError: they do not fit one another, as where sizes depend on a batch that is another.
    """
    try:
        return np.broadcast_shapes(*(one.shape for one in operands))
    except ValueError as error:
        raise RefusedError("its operands do not fit one another where the batch is 1") from error
