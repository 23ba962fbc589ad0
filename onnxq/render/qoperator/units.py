"""What is read of a QDQ model: integers with their grid, the quantizer behind a node, and both as a unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.values import constant_array, input_of, is_constant, only_reader

__all__ = [
    "Grid",
    "NoQOperatorError",
    "Target",
    "Unit",
    "grid_behind",
    "grid_of",
    "grid_of_quantizer",
    "same_grid",
]

_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_INT32_LIMIT = 2.0**31 - 1


class NoQOperatorError(Exception):
    """A unit has no QOperator; the message says why."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers, or what a quantizer makes, and their real values.

    Attributes:
        integers: the integers; for a quantizer what it gives.
        scale: constant float32, of one element or one a channel.
        zero: constant of the type of the integers, the shape of ``scale``.
        axis: of the channels, where there is a scale for each.
    """

    integers: ir.Value
    scale: ir.Value
    zero: ir.Value
    axis: int | None

    @property
    def dtype(self) -> ir.DataType:
        """Type of the integers."""
        assert self.zero.dtype is not None
        return self.zero.dtype

    def __iter__(self) -> Iterator[ir.Value]:
        """Integers, scale and zero point, the order in which QOperators take them."""
        return iter((self.integers, self.scale, self.zero))


@dataclass(frozen=True, slots=True)
class Target:
    """The quantizer that alone reads a node's output.

    Attributes:
        node: the QuantizeLinear.
        grid: what it gives.
        clip: the Relu or Clip in between.
    """

    node: ir.Node
    grid: Grid
    clip: ir.Node | None = None


def _grid(node: ir.Node, integers: ir.Value | None) -> Grid | None:
    """The grid of a QuantizeLinear or DequantizeLinear with constant parameters."""
    if node.domain not in OF_QUANTIZERS or len(node.inputs) < 3 or node.attributes.get_int("block_size", 0) > 0:
        return None
    scale, zero = node.inputs[1], node.inputs[2]
    if integers is None or scale is None or zero is None or not is_constant(scale) or not is_constant(zero):
        return None
    if scale.dtype is not ir.DataType.FLOAT:
        return None
    per_channel = _numbers(scale).size > 1
    return Grid(integers, scale, zero, node.attributes.get_int("axis", 1) if per_channel else None)


def grid_of(value: ir.Value | None) -> Grid | None:
    """The integers that a value is dequantized from."""
    dq = value.producer() if value is not None else None
    return _grid(dq, dq.inputs[0]) if dq is not None and dq.op_type == "DequantizeLinear" else None


def grid_of_quantizer(node: ir.Node) -> Grid | None:
    """What a QuantizeLinear gives."""
    return _grid(node, node.outputs[0])


def _has_constant_bounds(node: ir.Node) -> bool:
    return node.op_type == "Relu" or all(value is None or is_constant(value) for value in node.inputs[1:])


def grid_behind(value: ir.Value) -> Target | None:
    """The quantizer that alone reads a value, in the same graph, directly or through a Relu or Clip."""
    clip: ir.Node | None = None
    reader = only_reader(value)
    if reader is not None and reader.op_type in ("Relu", "Clip") and reader.inputs[0] is value:
        if not _has_constant_bounds(reader):
            return None
        clip = reader
        reader = only_reader(reader.outputs[0])
    producer = value.producer()
    if reader is None or reader.op_type != "QuantizeLinear" or producer is None or reader.graph is not producer.graph:
        return None
    grid = _grid(reader, reader.outputs[0])
    return Target(reader, grid, clip) if grid is not None else None


def same_grid(a: Grid, b: Grid) -> bool:
    """Whether two grids of one scale give the same integers."""
    if a.axis is not None or b.axis is not None or a.dtype is not b.dtype:
        return False
    return all(
        x is y or np.array_equal(np.ravel(_numbers(x)), np.ravel(_numbers(y)))
        for x, y in ((a.scale, b.scale), (a.zero, b.zero))
    )


def _numbers(value: ir.Value) -> NDArray[Any]:
    array = constant_array(value)
    assert array is not None
    return array


@dataclass(slots=True)
class Unit:
    """A node between dequantizers and a quantizer, as the builders of QOperators see it.

    Attributes:
        node: the float operator.
        namer: hands out names.
        opset: of the model.
        target: the quantizer behind it; ``None`` where its output is read in float.
    """

    node: ir.Node
    namer: Namer
    opset: int
    target: Target | None

    def grid(self, position: int) -> Grid:
        """The integers of an input.

        Raises:
            NoQOperatorError: the input is float, or its integers have no QOperator.
        """
        value = input_of(self.node, position)
        grid = grid_of(value)
        if grid is None:
            raise NoQOperatorError(f"its input {position} is float")
        return self._of_bytes(grid)

    def per_tensor(self, position: int) -> Grid:
        """The integers of an input with one scale.

        Raises:
            NoQOperatorError: see :meth:`grid`; or it has a scale a channel.
        """
        grid = self.grid(position)
        if grid.axis is not None:
            raise NoQOperatorError(f"its input {position} has a scale for each channel")
        return grid

    def output(self) -> Grid:
        """The grid of the output.

        Raises:
            NoQOperatorError: it is not only read by one quantizer, or its integers have no QOperator.
        """
        if self.target is None:
            raise NoQOperatorError("its output is not only read by one quantizer")
        if self.target.grid.axis is not None:
            raise NoQOperatorError("its output has a scale for each channel")
        return self._of_bytes(self.target.grid)

    def weight(self, position: int, axis: int) -> Grid:
        """The integers of a weight with one scale, or one for each index along an axis.

        Raises:
            NoQOperatorError: see :meth:`grid`; or the channels are others.
        """
        grid = self.grid(position)
        if grid.axis is not None:
            shape = grid.integers.shape
            rank = len(shape) if shape is not None else 0
            if not rank or grid.axis % rank != axis % rank:
                raise NoQOperatorError(f"its weight has a scale for each index of axis {grid.axis}")
        return grid

    def one_type(self, *grids: Grid) -> None:
        """Require one type of integers; onnxruntime's kernels for uint8 take and give uint8 only.

        Raises:
            NoQOperatorError: they differ.
        """
        if len({grid.dtype for grid in grids}) > 1:
            raise NoQOperatorError("uint8 and int8 meet")

    def weight_type(self, data: Grid, weight: Grid) -> None:
        """Require a weight that the kernels take: int8, or for uint8 data either type.

        Raises:
            NoQOperatorError: uint8 weights for int8 data.
        """
        if data.dtype is ir.DataType.INT8 and weight.dtype is ir.DataType.UINT8:
            raise NoQOperatorError("uint8 weights for int8 activations")

    def bias(self, position: int, data: Grid, weight: Grid) -> ir.Value | None:
        """A bias as int32, in units of data scale times weight scale, rounded to nearest.

        Raises:
            NoQOperatorError: it is computed at run time, or beyond int32.
        """
        value = input_of(self.node, position)
        if value is None:
            return None
        unit = np.asarray(_numbers(data.scale) * _numbers(weight.scale), np.float32)
        stored = grid_of(value)
        if stored is not None and is_constant(stored.integers):
            integers, scale, zero = (_numbers(v) for v in stored)
            if (scale == unit).all() and not zero.any() and stored.axis in (None, integers.ndim - 1):
                return stored.integers
            view = tuple(-1 if k == stored.axis else 1 for k in range(integers.ndim)) if stored.axis is not None else ()
            real = (integers.astype(np.float64) - zero.reshape(view)) * scale.reshape(view)
        else:
            constant = constant_array(value)
            if constant is None:
                raise NoQOperatorError("its bias is computed at run time")
            real = constant.astype(np.float64)
        exact = np.rint(real / unit.astype(np.float64).reshape(unit.shape if unit.size > 1 else ()))
        if not (np.abs(exact) <= _INT32_LIMIT).all():
            raise NoQOperatorError("its bias is beyond int32")
        home = self.node.graph
        assert isinstance(home, ir.Graph)
        return set_constant(home, self.namer, f"{value.name}_int32", exact.astype(np.int32))

    def _of_bytes(self, grid: Grid) -> Grid:
        if grid.dtype not in _BYTES:
            raise NoQOperatorError(f"{grid.dtype.name.lower()} has no QOperator")
        return grid
