"""A TensorFlow Lite model as it is put together; :mod:`onnxq.backends.litert.packing` makes a file of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.kernels import DATA, require_kernel, takes_four_bits
from onnxq.backends.litert.placed import Grid

__all__ = ["TYPES", "FlatModel", "FlatOperator", "FlatTensor"]

TYPES: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT: "FLOAT32",
    ir.DataType.FLOAT16: "FLOAT16",
    ir.DataType.DOUBLE: "FLOAT64",
    ir.DataType.INT4: "INT4",
    ir.DataType.INT8: "INT8",
    ir.DataType.UINT8: "UINT8",
    ir.DataType.INT16: "INT16",
    ir.DataType.INT32: "INT32",
    ir.DataType.INT64: "INT64",
    ir.DataType.BOOL: "BOOL",
}
"""Types of tensors that are written."""

_SUMS = ("ADD", "SUB")
"""Operators that take int16 to be on powers of two unless told otherwise."""
_FEW = 16
"""Elements of a constant that is looked for among those that are there."""


@dataclass(frozen=True)
class FlatTensor:
    """A tensor of the graph: ``data`` of a constant, ``grid`` of integers that stand for real numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: ir.DataType
    grid: Grid | None
    data: NDArray[Any] | None


@dataclass(frozen=True)
class FlatOperator:
    """An operator of the graph, its tensors by number, -1 for one that is left out."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass
class FlatModel:
    """A model of one graph.

    Attributes:
        inputs: name → tensor.
        outputs: name → tensor.
        tensors: all of them.
        operators: in order.
        in_float: nodes of the plan's integers that are float in a form which it has for floats alone.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    tensors: list[FlatTensor] = field(default_factory=list)
    operators: list[FlatOperator] = field(default_factory=list)
    in_float: list[str] = field(default_factory=list)
    _constants: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def tensor(self, name: str, shape: Sequence[int], dtype: ir.DataType, grid: Grid | None = None) -> int:
        """A new tensor that an operator, or the caller, fills; its number."""
        return self._added(FlatTensor(name, tuple(shape), dtype, grid, None))

    def constant(self, name: str, array: NDArray[Any], grid: Grid | None = None, *, alone: bool = False) -> int:
        """A tensor of given numbers: the one that is there where a small one is the same, unless it is to be alone."""
        dtype = ir.DataType.from_numpy(array.dtype)
        key = (array.shape, dtype, grid, array.tobytes()) if array.size <= _FEW and not alone else None
        if key is not None and key in self._constants:
            return self._constants[key]
        index = self._added(FlatTensor(name, array.shape, dtype, grid, array))
        if key is not None:
            self._constants[key] = index
        return index

    def constant_again(self, index: int, shape: Sequence[int]) -> int:
        """The numbers of a constant in another shape."""
        old = self.tensors[index]
        assert old.data is not None
        return self.constant(old.name, old.data.reshape(shape), old.grid)

    def operator(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """Add an operator, -1 for an input that is left out; ``options`` as the schema's Python classes name them.

        Raises:
            RefusedError: TensorFlow Lite does not compute it in the type of its inputs.
        """
        data = self.tensors[inputs[DATA.get(kind, 0)]]
        if data.dtype is ir.DataType.INT16 and kind in _SUMS:
            options = {"potScaleInt16": False, **options}
        require_kernel(kind, data.dtype, data.shape, on_grid=data.grid is not None)
        taken = tuple(self._weight(kind, index) for index in inputs)
        self.operators.append(FlatOperator(kind, taken, tuple(outputs), options))

    def rename(self, index: int, name: str) -> None:
        """Give a tensor another name."""
        self.tensors[index] = replace(self.tensors[index], name=name)

    def set_grid(self, index: int, grid: Grid) -> None:
        """Say what the integers of a tensor stand for."""
        self.tensors[index] = replace(self.tensors[index], grid=grid)

    def of_integers(self) -> list[str]:
        """Inputs and outputs that are integers, and stand for real numbers."""
        names = {**self.inputs, **self.outputs}
        return [name for name, index in names.items() if self.tensors[index].grid is not None]

    def numbers(self, index: int) -> NDArray[Any] | None:
        """The numbers of a constant; None of other tensors."""
        return self.tensors[index].data

    def is_computed(self, index: int) -> bool:
        """Whether an operator makes a tensor: it is no constant, and no input."""
        return self.tensors[index].data is None and index not in self.inputs.values()

    def pruned(self) -> FlatModel:
        """The model without operators that nobody reads, and without what only they read."""
        read, kept = set(self.outputs.values()), list[FlatOperator]()
        for operator in reversed(self.operators):
            if read.intersection(operator.outputs):
                read.update(operator.inputs)
                kept.append(operator)
        read.update(*(operator.outputs for operator in kept), self.inputs.values())
        numbers = {old: new for new, old in enumerate(sorted(read - {-1}))} | {-1: -1}
        moved = [
            FlatOperator(one.kind, _renumbered(one.inputs, numbers), _renumbered(one.outputs, numbers), one.options)
            for one in reversed(kept)
        ]
        inputs, outputs = (
            {name: numbers[index] for name, index in names.items()} for names in (self.inputs, self.outputs)
        )
        tensors = [self.tensors[old] for old in sorted(read - {-1})]
        return FlatModel(
            inputs, outputs, _named_once(tensors, {*inputs.values(), *outputs.values()}), moved, self.in_float
        )

    def _weight(self, kind: str, index: int) -> int:
        """What an operator reads, weights of int4 as int8 where its kernel has these alone."""
        tensor = self.tensors[index]
        if index < 0 or tensor.dtype is not ir.DataType.INT4 or takes_four_bits(kind, tensor.shape):
            return index
        assert tensor.data is not None
        return self.constant(tensor.name, tensor.data.astype(np.int8), tensor.grid)

    def _added(self, tensor: FlatTensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _named_once(tensors: Sequence[FlatTensor], first: Collection[int]) -> list[FlatTensor]:
    """Tensors with names that none of them shares: other tools take one by its name. Some keep theirs."""
    taken, made = {tensors[index].name for index in first}, list[FlatTensor]()
    counts: Counter[str] = Counter()
    for index, tensor in enumerate(tensors):
        name = tensor.name
        while index not in first and name in taken:
            counts[tensor.name] += 1
            name = f"{tensor.name}_{counts[tensor.name]}"
        taken.add(name)
        made.append(tensor if name == tensor.name else replace(tensor, name=name))
    return made


def _renumbered(tensors: Sequence[int], numbers: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(numbers[tensor] for tensor in tensors)
