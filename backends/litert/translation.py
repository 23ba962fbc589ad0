"""What a translator of an operator works with: tensors in the order of axes it wants, and places for what it makes.

A node that the plan has in integers reads the integers in front of its DequantizeLinear nodes, and writes those behind
its QuantizeLinear: TensorFlow Lite has the numbers of quantizers at its tensors, and one operator for the three. All
other nodes read and write floats.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.codes import cast_options, codes_of, grid_of, known_type, real_of
from onnxq.backends.litert.flat import FlatModel
from onnxq.backends.litert.placed import Grid, Order, Placed, RefusedError, broadcast, plain, reordered, same_bytes
from onnxq.graph.traverse import full_type
from onnxq.graph.values import constant_array, static_shape
from onnxq.render import dynamic_fake_quantize, fake_quantize

__all__ = ["RANGED_AT_RUN", "Translation"]

RANGED_AT_RUN = f"{fake_quantize.DOMAIN}::{dynamic_fake_quantize.NAME}"

_FLOAT = ir.DataType.FLOAT
_MOST_AXES = 4
"""Of rows that a FULLY_CONNECTED reads."""


class Translation:
    """The state of a translation.

    Attributes:
        flat: the model as far as it is made.
        opset: of the ONNX model.
        small: it is for a microcontroller or an NPU: operators are few, and not those that XNNPACK has.
        integer: whether the node that is being translated computes in integers.
    """

    def __init__(self, model: ir.Model, integers: Collection[str], *, small: bool = False) -> None:
        self.flat = FlatModel()
        self.opset = model.opset_imports.get("", 1)
        self.small = small
        self.integer = False
        self._integers = integers
        self._placed: dict[ir.Value, list[Placed]] = {}
        self._shaped: dict[int, Placed] = {}  # what RESHAPE made -> what it was made of
        self._floats: dict[ir.Value, list[Placed]] = {}  # what DEQUANTIZE made of integers, for float nodes

    # -- what nodes are

    def enter(self, node: ir.Node) -> None:
        """Begin with a node."""
        written = [value for value in node.outputs if value.dtype is _FLOAT and value.uses()]
        quantized = node.name in self._integers and not self.is_ranged_at_run(node)
        self.integer = quantized and all(self._quantizer(value) is not None for value in written)

    def _quantizer(self, value: ir.Value) -> ir.Node | None:
        return next((use.node for use in value.uses() if use.node.op_type == "QuantizeLinear"), None)

    def grid_of(self, value: ir.Value) -> Grid | None:
        """The grid that a node in integers writes an output on; None of others, and of no real numbers."""
        quantizer = self._quantizer(value) if self.integer and value.dtype is _FLOAT else None
        return grid_of(quantizer) if quantizer is not None else None

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
            RefusedError: it is not known before the model runs.
        """
        found = static_shape(value)
        if found is None:
            name = value.name if value is not None else ""
            raise RefusedError(f"the size of its tensor {name!r} is not known before the model runs")
        return found

    # -- constants

    def numbers(self, value: ir.Value | None) -> NDArray[Any] | None:
        """The numbers of a constant, those that its DequantizeLinear makes where one is in between; None of others."""
        found = self.stored(value)
        if found is None:
            return None
        array, grid = found
        return array if grid is None else real_of(array, grid)

    def stored(self, value: ir.Value | None) -> tuple[NDArray[Any], Grid | None] | None:
        """A constant as it is stored, and its grid, whose axis is the ONNX tensor's; None where it is none."""
        array = constant_array(value)
        if array is not None:
            return array, None
        unpacks = value.producer() if value is not None else None
        if unpacks is None or unpacks.op_type != "DequantizeLinear":
            return None
        array = constant_array(unpacks.inputs[0])
        return None if array is None else (array, grid_of(unpacks))

    def weight(self, node: ir.Node) -> tuple[NDArray[Any], Grid | None]:
        """The constant second input of a node, with the grid that it has where integers are multiplied.

        Raises:
            RefusedError: it is computed.
        """
        value = node.inputs[1]
        found = self.stored(value)
        if found is None:
            given = value is not None and value.is_graph_input()
            raise RefusedError("its weights are an input of the model" if given else "its weights are computed")
        array, grid = found
        if grid is None or self.integer or self.is_ranged_at_run(node):
            return array, grid
        return real_of(array, grid), None

    def is_ranged_at_run(self, node: ir.Node) -> bool:
        """Whether a node in float reads what is rounded when the model runs: its kernel does that, with integers."""
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        return maker is not None and full_type(maker) == RANGED_AT_RUN

    def operand(self, value: ir.Value | None, order: Order, rank: int) -> Placed:
        """A constant with so many axes, in an order, with the grid that it has where the node is in integers."""
        found = self.stored(value)
        assert found is not None and value is not None
        array, grid = found
        if grid is not None and not self.integer:
            array, grid = real_of(array, grid), None
        turned = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(order)
        return self.constant(value.name or "", turned, grid, order)

    def constant(self, name: str, array: NDArray[Any], grid: Grid | None = None, order: Order | None = None) -> Placed:
        """A constant as it is to be stored."""
        dtype = known_type(ir.DataType.from_numpy(array.dtype), name)
        index = self.flat.constant(name, array, grid)
        return Placed(index, array.shape, order or plain(array.ndim), dtype, grid)

    def list_of(self, numbers: Sequence[int], name: str = "numbers") -> int:
        """A constant list of int32, as many operators take axes and sizes."""
        return self.flat.constant(name, np.array(numbers, np.int32))

    # -- reading

    def read(self, value: ir.Value | None, order: Order | None = None) -> Placed:
        """A tensor, in an order of its axes; in one that it is there in, where none is asked for."""
        assert value is not None
        if self.stored(value) is not None:
            return self.operand(value, order or plain(len(self.shape(value))), len(self.shape(value)))
        found = self._placed.get(value)
        if found is None:
            raise RefusedError(f"it reads {value.name!r}, which is not translated")
        if found[0].grid is not None and not self.integer:
            found = self._in_float(value, found[0])
        return self._in_order(found, order, value.name or "")

    def read_on_grid(self, node: ir.Node, order: Order | None = None) -> Placed:
        """The first tensor that a node reads, on the grid that it writes: for kernels that copy codes."""
        x, grid = self.read(node.inputs[0], order), self.grid_of(node.outputs[0])
        return x if grid is None else self.requantized(x, grid)

    def read_codes(self, value: ir.Value | None, order: Order | None = None) -> Placed:
        """The same, integers as they are also for a node in float."""
        before, self.integer = self.integer, True
        try:
            return self.read(value, order)
        finally:
            self.integer = before

    def read_in_order_first(self, value: ir.Value, order: Order) -> Placed:
        """A tensor as floats, whose axes are moved while they are integers."""
        codes = self.read_codes(value, order)
        if codes.grid is None:
            return codes
        return self._in_order(self._in_float(value, codes), order, value.name or "")

    def _in_float(self, value: ir.Value, given: Placed) -> list[Placed]:
        constant = self.flat.numbers(given.index)
        if constant is not None and given.grid is not None:
            self._floats[value] = [self.constant(value.name or "", real_of(constant, given.grid), order=given.order)]
        if value not in self._floats:
            index = self.flat.tensor(f"{value.name}", given.shape, _FLOAT)
            self.flat.operator("DEQUANTIZE", [given.index], [index])
            self._floats[value] = [Placed(index, given.shape, given.order, _FLOAT)]
        return self._floats[value]

    def _in_order(self, found: list[Placed], order: Order | None, name: str) -> Placed:
        if order is None:
            return found[0]
        for placed in found:
            if placed.order == order:
                return placed
        found.append(self.turned(found[0], order, name))
        return found[-1]

    def turned(self, placed: Placed, order: Order, name: str = "turned") -> Placed:
        """A tensor in another order of its axes."""
        if placed.order == order:
            return placed
        permutation = tuple(placed.order.index(axis) for axis in order)
        shape = tuple(placed.shape[axis] for axis in permutation)
        if same_bytes(placed.shape, permutation):
            return self.reshaped(placed, shape, order, name)
        index = self.flat.tensor(name, shape, placed.dtype, placed.grid)
        self.flat.operator("TRANSPOSE", [placed.index, self.list_of(permutation)], [index])
        return Placed(index, shape, order, placed.dtype, placed.grid)

    def reshaped(self, placed: Placed, shape: Sequence[int], order: Order | None = None, name: str = "") -> Placed:
        """The same elements in another shape."""
        shape, order = tuple(shape), order or plain(len(shape))
        source = self._shaped.get(placed.index, placed)
        if shape in (placed.shape, source.shape):
            index = placed.index if placed.shape == shape else source.index
            return Placed(index, shape, order, placed.dtype, placed.grid)
        index = self.flat.tensor(name or "reshaped", shape, placed.dtype, placed.grid)
        options = {"newShape": list(shape)}
        self.flat.operator("RESHAPE", [source.index, self.list_of(shape)], [index], **options)
        self._shaped[index] = source
        return Placed(index, shape, order, placed.dtype, placed.grid)

    def as_rows(self, placed: Placed) -> Placed:
        """Rows of numbers as they were before a RESHAPE that has left the rows as they are; XNNPACK takes few axes."""
        source = self._shaped.get(placed.index, placed)
        return source if source.shape[-1] == placed.shape[-1] and len(source.shape) <= _MOST_AXES else placed

    # -- writing

    def place(self, value: ir.Value, placed: Placed) -> None:
        """Let a tensor of the graph be an output of a node, or what is made of it without computing."""
        self._placed[value] = [placed]

    def placed(self, value: ir.Value) -> Placed | None:
        """The tensor that stands for one of the model's, as it was made."""
        found = self._placed.get(value)
        return found[0] if found else None

    def new(
        self, value: ir.Value, order: Order, shape: Sequence[int] | None = None, grid: Grid | None = None
    ) -> Placed:
        """A tensor for an output of the node, on its grid where it is in integers; nothing fills it yet."""
        given = self.shape(value)
        stored = reordered(given, order) if shape is None else tuple(shape)
        grid = grid or self.grid_of(value)
        dtype = grid.dtype if grid is not None else known_type(value.dtype, value.name or "")
        return Placed(self.flat.tensor(value.name or "", stored, dtype, grid), stored, order, dtype, grid)

    def write(self, value: ir.Value, kind: str, inputs: Sequence[int], order: Order, **options: Any) -> Placed:
        """An operator that makes an output of the node."""
        made = self.new(value, order)
        self.flat.operator(kind, inputs, [made.index], **options)
        self.place(value, made)
        return made

    def compute(
        self,
        kind: str,
        inputs: Sequence[Placed],
        *more: int,
        shape: Sequence[int] | None = None,
        grid: Grid | None = None,
    ) -> Placed:
        """An operator that makes a tensor on the way, with axes like those of its inputs.

        Args:
            kind: the operator.
            inputs: tensors in the same order of axes, with as many axes.
            *more: further inputs.
            shape: of the result; what broadcasting makes of those of the inputs unless given.
            grid: of the result, where it is in integers.
        """
        shape = broadcast(inputs) if shape is None else tuple(shape)
        index = self.flat.tensor(kind.lower(), shape, inputs[0].dtype, grid)
        self.flat.operator(kind, [*(one.index for one in inputs), *more], [index])
        return Placed(index, shape, inputs[0].order, inputs[0].dtype, grid)

    def scalar(self, number: float, like: Placed) -> Placed:
        """A constant number with as many axes as a tensor, for broadcasting."""
        array = np.full((1,) * len(like.shape), number, np.float32)
        return self.constant("number", array, order=like.order)

    def compared(self, kind: str, one: Placed, other: Placed) -> Placed:
        """A comparison on the way."""
        shape = broadcast((one, other))
        index = self.flat.tensor(kind.lower(), shape, ir.DataType.BOOL)
        self.flat.operator(kind, [one.index, other.index], [index])
        return Placed(index, shape, one.order, ir.DataType.BOOL)

    def chosen(self, condition: Placed, one: Placed, other: Placed) -> Placed:
        """One of two tensors of a shape, element by element."""
        index = self.flat.tensor("chosen", one.shape, one.dtype)
        self.flat.operator("SELECT_V2", [condition.index, one.index, other.index], [index])
        return Placed(index, one.shape, one.order, one.dtype)

    def cast(self, placed: Placed, dtype: ir.DataType) -> Placed:
        """Elements of another type."""
        index = self.flat.tensor("cast", placed.shape, dtype)
        self.flat.operator("CAST", [placed.index], [index], **cast_options(placed.dtype, dtype))
        return Placed(index, placed.shape, placed.order, dtype)

    def reshaped_constant(self, placed: Placed, shape: Sequence[int]) -> Placed:
        """A constant again, without axes of one element in front."""
        index = self.flat.constant_again(placed.index, shape)
        return Placed(index, tuple(shape), plain(len(shape)), placed.dtype, placed.grid)

    def new_shape(self, value: ir.Value, order: Order) -> tuple[int, ...]:
        """The shape of an output in an order of its axes."""
        return reordered(self.shape(value), order)

    def requantized(self, placed: Placed, grid: Grid, name: str = "requantized") -> Placed:
        """Integers, or floats, on another grid."""
        if placed.grid == grid:
            return placed
        constant = self.flat.numbers(placed.index)
        if constant is not None:
            real = constant if placed.grid is None else real_of(constant, placed.grid)
            return self.constant(name, codes_of(real, grid), grid, placed.order)
        index = self.flat.tensor(name, placed.shape, grid.dtype, grid)
        self.flat.operator("QUANTIZE", [placed.index], [index])
        return Placed(index, placed.shape, placed.order, grid.dtype, grid)

    def code(self, number: float, grid: Grid) -> int:
        """The integer that stands for a number."""
        return int(codes_of(np.asarray(number, np.float32), grid))
