"""Targets of Reshape that a model computes from shapes, as constants where at most one of their sizes is not known.

TensorFlow writes every dense layer of three axes so where the batch is free: ``Shape → Cast → Gather → Concat → Cast →
Reshape``. Of what such a Reshape gives shape inference knows nothing, so that no normalization behind it is seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array, is_constant

__all__ = ["fold_targets"]

Size = tuple[int, tuple[str, ...]]
"""A number times dimensions that have a name each, sorted."""
Sizes = list[Size | None]
"""Elements of a vector; None where nothing is known of one."""

_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
_SAME = frozenset({"Identity", "Squeeze", "Unsqueeze"})
"""What gives a vector of sizes another shape at most."""
_MOST = 32
"""Elements of a vector, dimensions of a product and steps back that are looked at."""
_TOP = (1 << 63) - 1


def fold_targets(model: ir.Model) -> list[Note]:
    """Give a Reshape whose target is computed a constant one, where it follows from the shapes that are known.

    One size that is not known is left to the Reshape itself (-1), and those that are the same size of its input are
    copied (0).

    Args:
        model: changed in place; shapes must be inferred, constants folded.

    Returns:
        A note of how many, if any. What computed the targets stays, without a reader.
    """
    found: list[tuple[ir.Node, list[int]]] = []
    vectors = _Vectors()
    for graph in all_graphs(model):
        for node in graph:
            if node.op_type != "Reshape" or node.domain != "" or len(node.inputs) < 2 or is_constant(node.inputs[1]):
                continue
            target = _target(node, vectors)
            if target is not None:
                found.append((node, target))
    namer = Namer(model) if found else None
    for node, target in found:
        graph_of = node.graph
        assert namer is not None and isinstance(graph_of, ir.Graph)
        name = f"{node.name or node.outputs[0].name}_shape"
        node.replace_input_with(1, set_constant(graph_of, namer, name, np.array(target, np.int64)))
    return [Note("constants", "", f"{len(found)} computed targets of Reshape became constants")] if found else []


def _target(node: ir.Node, vectors: _Vectors) -> list[int] | None:
    """A target that means the same as what a Reshape reads; None where too little is known."""
    sizes = vectors.sizes(node.inputs[1])
    source = _dimensions(node.inputs[0])
    if sizes is None or not isinstance(node.graph, ir.Graph):
        return None
    copies = not node.attributes.get_int("allowzero", 0)
    sizes = _without_zeros(sizes, source) if copies else sizes
    sizes = _without_rest(sizes, source)
    target = [size[0] if size is not None and not size[1] else None for size in sizes]
    if any(number is not None and number < 1 for number in target):
        return None
    if copies:
        _copy(target, sizes, source or [])
    return [-1 if number is None else number for number in target] if target.count(None) <= 1 else None


def _copy(target: list[int | None], sizes: Sizes, source: Sizes) -> None:
    """Take 0 for sizes that are not known and the same in the input, in place, until one is left."""
    unknown = [index for index, number in enumerate(target) if number is None]
    alike = [index for index in unknown if index < len(source) and _same(sizes[index], source[index])]
    for index in alike[: len(unknown) - 1]:
        target[index] = 0


def _same(one: Size | None, other: Size | None) -> bool:
    return one is not None and one == other


def _without_zeros(sizes: Sizes, source: Sizes | None) -> Sizes:
    """The size of the input that each 0 stands for, in its place."""
    held: Sizes = [*(source or []), *[None] * len(sizes)]
    return [held[index] if size == (0, ()) else size for index, size in enumerate(sizes)]


def _without_rest(sizes: Sizes, source: Sizes | None) -> Sizes:
    """What a -1 stands for in its place, where it is to be found out."""
    others = [size for size in sizes if size != (-1, ())]
    if len(others) == len(sizes):
        return sizes
    whole, part = _product(source), _product(others)
    rest = None
    if whole is not None and part is not None and part[0] > 0 and whole[0] % part[0] == 0:
        left = Counter(whole[1])
        left.subtract(part[1])
        if all(count >= 0 for count in left.values()):
            rest = (whole[0] // part[0], tuple(sorted(left.elements())))
    return [rest if size == (-1, ()) else size for size in sizes]


def _product(sizes: Sequence[Size | None] | None) -> Size | None:
    if sizes is None:
        return None
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    number, names = math.prod(size[0] for size in known), sorted(name for size in known for name in size[1])
    return (number, tuple(names)) if abs(number) <= _TOP and len(names) <= _MOST else None


def _dimensions(value: ir.Value | None) -> Sizes | None:
    """The shape of a tensor; None where not even its rank is known."""
    if value is None or value.shape is None:
        return None
    return [_size(dim) for dim in value.shape.dims]


def _size(dim: int | ir.SymbolicDim) -> Size | None:
    if isinstance(dim, int):
        return dim, ()
    return None if not dim.value else (1, (str(dim.value),))


class _Vectors:
    """Vectors of integers that are made of shapes and constants, each followed back once."""

    def __init__(self) -> None:
        self._found: dict[tuple[ir.Value, int], Sizes | None] = {}

    def sizes(self, value: ir.Value | None, steps: int = _MOST) -> Sizes | None:
        """The elements of a vector that is made so in so many steps; None for any other."""
        if value is None:
            return None
        if (value, steps) not in self._found:
            self._found[value, steps] = self._made(value, steps)
        return self._found[value, steps]

    def _made(self, value: ir.Value, steps: int) -> Sizes | None:
        array = constant_array(value)
        if array is not None:
            small = array.dtype.kind == "i" and array.ndim <= 1 and array.size <= _MOST
            return [(int(number), ()) for number in array.reshape(-1)] if small else None
        node = value.producer()
        if node is None or node.domain != "" or steps == 0:
            return None
        if node.op_type == "Shape":
            dims = _dimensions(node.inputs[0])
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", _MOST)
            return None if dims is None else dims[start:end]
        if node.op_type == "Concat":
            return _joined([self.sizes(each, steps - 1) or _nothing(each) for each in node.inputs])
        first = self.sizes(node.inputs[0], steps - 1) if node.inputs else None
        if first is None:
            return _nothing(value)
        if node.op_type in _SAME or (node.op_type == "Cast" and value.dtype in _INTEGERS):
            return first
        return _picked(node, first) or self._computed(node, first, steps) or _nothing(value)

    def _computed(self, node: ir.Node, sizes: Sizes, steps: int) -> Sizes | None:
        """What is computed of the elements of vectors."""
        if node.op_type == "ReduceProd" and (len(node.inputs) < 2 or node.inputs[1] is None or len(sizes) > 1):
            return [_product(sizes)]
        if node.op_type not in ("Max", "Mul") or len(node.inputs) != 2:
            return None
        other = self.sizes(node.inputs[1], steps - 1)
        if other is None or len(other) != len(sizes):
            return None
        pairs = zip(sizes, other, strict=True)
        if node.op_type == "Mul":
            return [_product([one, two]) for one, two in pairs]
        return [_largest(one, two) for one, two in pairs]


def _joined(parts: Sequence[Sizes | None]) -> Sizes | None:
    """What a Concat makes of vectors."""
    known = [part for part in parts if part is not None]
    whole = [size for part in known for size in part] if sum(map(len, known)) <= _MOST else None
    return whole if len(known) == len(parts) else None


def _nothing(value: ir.Value | None) -> Sizes | None:
    """A vector of integers of which nothing but its length is known."""
    shape = value.shape if value is not None and value.dtype in _INTEGERS else None
    length = shape[0] if shape is not None and len(shape) == 1 else 1 if shape is not None and len(shape) == 0 else None
    return [None] * length if isinstance(length, int) and length <= _MOST else None


def _picked(node: ir.Node, sizes: Sizes) -> Sizes | None:
    """What a Gather or a Slice takes of a vector."""
    numbers = [constant_array(value) for value in node.inputs[1:]]
    if node.op_type == "Gather" and numbers[0] is not None:
        places = [int(k) for k in numbers[0].reshape(-1)]
        return [sizes[k] for k in places] if all(-len(sizes) <= k < len(sizes) for k in places) else None
    if (
        node.op_type == "Slice"
        and len(numbers) >= 2
        and all(array is not None and array.size == 1 for array in numbers)
    ):
        bounds = [int(array.reshape(-1)[0]) for array in numbers if array is not None]
        step = bounds[3] if len(bounds) > 3 else 1
        return sizes[bounds[0] : bounds[1] : step] if step > 0 else None
    return None


def _largest(one: Size | None, two: Size | None) -> Size | None:
    if one is None or two is None:
        return None
    if one == two:
        return one
    return (max(one[0], two[0]), ()) if not one[1] and not two[1] else None
