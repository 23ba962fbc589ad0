"""Tensors that LiteRT would write over while they are still read, and a copy of them in front.

Its planner of memory (``arena_planner.cc``, of LiteRT 2.3 too) lets a RESHAPE give the tensor that it reads, and
arithmetic write over one that nobody else reads. It asks that of the tensor itself and of the first that lay there, not
of those between the two: behind ``m = x * w`` that lies where x did, ``a = reshape(m)``, ``a + k`` is written over m.
XNNPACK plans by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from onnxq.backends.litert.flat import FlatModel, FlatOperator

__all__ = ["kept_apart"]

_WRITES: Mapping[str, int] = {"ADD": 2, "SUB": 2, "MUL": 2, "DIV": 2, "SOFTMAX": 1}
"""Operators that write over what they read, and how many of their inputs these may be."""
_GIVES = "RESHAPE"
_LEAST = 4
"""Bytes; smaller tensors are not shared."""


def kept_apart(model: FlatModel) -> FlatModel:
    """Copy what an operator would write over while others read it.

    Args:
        model: left unchanged, but for tensors that are added.
    """
    places, made = _Places(model), list[FlatOperator]()
    for k, operator in enumerate(model.operators):
        x = places.taken(operator)
        if x is not None and operator.kind in _WRITES and places.is_read_after(k, x):
            read = model.tensors[x]
            copy = model.tensor(read.name, read.shape, read.dtype, read.grid)
            axes = model.constant("axes", np.arange(len(read.shape), dtype=np.int32))
            made.append(FlatOperator("TRANSPOSE", (x, axes), (copy,), {}))
            inputs = tuple(copy if index == x else index for index in operator.inputs)
            operator = replace(operator, inputs=inputs)
            places.share(copy, operator.outputs[0])
        elif x is not None:
            places.share(x, operator.outputs[0])
        made.append(operator)
    return replace(model, operators=made)


@dataclass
class _Places:
    """Which tensors lie where others lay, as the planner has it.

    Attributes:
        model: the model.
        first: tensor → the first that lay in its place, where that is another.
        reads: tensor → how often it is read; of inputs and outputs of the model once more.
        last: tensor → the last operator that reads it.
    """

    model: FlatModel
    first: dict[int, int] = field(default_factory=dict)
    reads: Counter[int] = field(default_factory=Counter)
    last: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reads.update([*self.model.inputs.values(), *self.model.outputs.values()])
        for k, operator in enumerate(self.model.operators):
            self.reads.update(operator.inputs)
            self.last.update(dict.fromkeys(operator.inputs, k))

    def taken(self, operator: FlatOperator) -> int | None:
        """The input in whose place the operator's output lies; None where it has one of its own."""
        made = operator.outputs[0]
        if made in self.model.outputs.values():
            return None
        if operator.kind == _GIVES:
            return operator.inputs[0] if self._may_lie(operator.inputs[0]) else None
        for x in operator.inputs[: _WRITES.get(operator.kind, 0)]:
            size = self._size(x)
            if self._may_lie(x) and self.reads[x] == 1 and size == self._size(made) and size > _LEAST:
                return x if self.reads[self.first.get(x, x)] == 1 else None
        return None

    def share(self, x: int, made: int) -> None:
        """Let a tensor lie where another does."""
        self.first[made] = self.first.get(x, x)

    def is_read_after(self, k: int, x: int) -> bool:
        """Whether an operator behind the k-th reads what lies where a tensor does."""
        place = self.first.get(x, x)
        return any(self.last.get(one, k) > k for one, first in self.first.items() if first == place and one != x)

    def _may_lie(self, x: int) -> bool:
        return self.model.tensors[x].data is None and x not in self.model.inputs.values()

    def _size(self, x: int) -> int:
        tensor = self.model.tensors[x]
        return int(math.prod(tensor.shape) * tensor.dtype.itemsize)
