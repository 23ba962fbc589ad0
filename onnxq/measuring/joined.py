"""What a Concat joins in an output, measured apart: of boxes up to 640 beside scores up to 1 the SQNR of all shows the
boxes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_nodes
from onnxq.measuring.metrics import ErrorMeter, Errors

__all__ = ["JoinedMeter", "Partition", "hidden", "partitions"]

_FAR = 10.0
"""dB below the whole from which on a branch is not what its figure shows."""
_FINE = 30.0
"""dB from which on a branch has lost nothing that matters."""
_MOST = 32
"""Branches, at most: more are rows of one thing."""
_SAME_AXES = frozenset({"Cast", "Identity"})
_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True)
class Partition:
    """Where in a tensor the branches of a Concat lie.

    Attributes:
        axis: counted from the last one, so negative.
        names: the tensors joined, in their order.
        sizes: of each along the axis; one at most is None, which has the rest.
    """

    axis: int
    names: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def split(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The branches; none where their sizes are not those of the array."""
        if array.ndim < -self.axis:
            return {}
        known = sum(size for size in self.sizes if size is not None)
        whole = array.shape[self.axis]
        sizes = [whole - known if size is None else size for size in self.sizes]
        if min(sizes) < 0 or sum(sizes) != whole:
            return {}
        return dict(zip(self.names, np.split(array, np.cumsum(sizes)[:-1], axis=self.axis), strict=True))


def partitions(model: ir.Model) -> dict[str, tuple[Partition, ...]]:
    """Graph output → its partitions, for the outputs that a Concat makes, moved about behind it or not.

    Where several tensors are joined that are joined alike (boxes beside scores of each scale of a detector, then the
    scales), there is one for each axis; branches bear the names of the first of them.
    """
    known: dict[ir.Value, list[Partition]] = {}
    for node in all_nodes(model):
        for value in node.outputs:
            if found := list(_of(value, known)):
                known[value] = found
    return {output.name or "": tuple(known[output]) for output in model.graph.outputs if output in known}


@dataclass
class JoinedMeter:
    """Errors of the branches of one output, a sample at a time.

    Args:
        parts: see :func:`partitions`.
    """

    parts: tuple[Partition, ...]
    _meters: dict[str, ErrorMeter] = field(default_factory=dict)

    def update(self, reference: np.ndarray, result: np.ndarray, sample: int) -> None:
        """Compare one sample; of another shape it has no branches."""
        if reference.shape != result.shape or reference.dtype.kind != "f":
            return
        for part in self.parts:
            got = part.split(result)
            for name, branch in part.split(reference).items():
                self._meters.setdefault(name, ErrorMeter()).update(branch, got[name], sample)

    def result(self) -> dict[str, Errors]:
        """The errors of each branch."""
        return {name: meter.result() for name, meter in self._meters.items()}


def hidden(whole: Errors, branches: Mapping[str, Errors]) -> tuple[str, Errors] | None:
    """The branch that has lost most, where the figure of the whole output does not show it; None where it does.

    A branch of zeros has nothing to lose.
    """
    lost = [(name, errors) for name, errors in branches.items() if errors.peak > 0 and errors.sqnr < _FINE]
    worst = min(lost, key=lambda pair: pair[1].sqnr, default=None)
    return worst if worst is not None and worst[1].sqnr < whole.sqnr - _FAR else None


def _of(value: ir.Value, known: Mapping[ir.Value, list[Partition]]) -> Iterator[Partition]:
    """The partitions of a tensor, by those of what is in front of it."""
    node, rank = value.producer(), len(value.shape) if value.shape is not None else None
    if node is None or rank is None or node.domain != "":
        return
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "Concat":
        yield from _joined(node, rank, known)
    elif first is not None and first.shape is not None:
        for part in known.get(first, ()):
            axis = _behind(node, part.axis, first, value)
            if axis is not None:
                yield Partition(axis, part.names, part.sizes)


def _joined(node: ir.Node, rank: int, known: Mapping[ir.Value, list[Partition]]) -> Iterator[Partition]:
    """The partition of a Concat, in one with those of what it joins along the same axis; and those it joins alike."""
    axis = node.attributes.get_int("axis", 0)
    axis = axis if axis < 0 else axis - rank
    inputs = [value for value in node.inputs if value is not None]
    within = [known.get(value, []) for value in inputs]
    names: list[str] = []
    sizes: list[int | None] = []
    for value, parts in zip(inputs, within, strict=True):
        same = next((part for part in parts if part.axis == axis), None)
        size = value.shape[axis] if value.shape is not None else None
        names += same.names if same is not None else (value.name or "",)
        sizes += same.sizes if same is not None else (size if isinstance(size, int) else None,)
    if 1 < len(names) <= _MOST and len(set(names)) == len(names) and sizes.count(None) <= 1:
        yield Partition(axis, tuple(names), tuple(sizes))
    for part in within[0]:
        alike = all(any((p.axis, p.sizes) == (part.axis, part.sizes) for p in parts) for parts in within)
        if part.axis != axis and alike and None not in part.sizes:
            yield part


def _behind(node: ir.Node, axis: int, before: ir.Value, after: ir.Value) -> int | None:
    """Where an axis is found behind a node that only moves numbers; None where it is not."""
    assert before.shape is not None and after.shape is not None
    if node.op_type in _SAME_AXES:
        return axis
    if node.op_type == "Transpose":
        order = list(node.attributes.get_ints("perm", list(range(len(before.shape)))[::-1]))
        return order.index(axis + len(order)) - len(order)
    if node.op_type in _RESHAPES:
        old, new = before.shape.dims, after.shape.dims
        place = axis + len(old)
        if _known(old[axis:]) and old[axis:] == new[axis:]:
            return axis
        if _known(old[: place + 1]) and old[: place + 1] == new[: place + 1]:
            return place - len(new)
    return None


def _known(dims: Sequence[int | ir.SymbolicDim]) -> bool:
    """Whether each has a number or a name."""
    return all(isinstance(dim, int) or dim.value is not None for dim in dims)
