"""Einsum of two tensors as the matrix product that it is: targets have integer kernels for that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["einsum_products"]

Size = int | str | None
"""Of an axis: a number, a name, or unknown."""


def einsum_products(model: ir.Model) -> list[Note]:
    """Write each Einsum of two tensors that sums over axes of both as a MatMul.

    Axes of both that the result has too are those of a batch. Where several axes make a row, a column or what is summed
    over, they become one by a Reshape, which takes at most one size that is not known before the model runs, beside
    those of axes in front that stay as they are. Left are diagonals, axes that one tensor alone sums over, an ellipsis,
    and other types than floats.

    Args:
        model: changed in place, shapes inferred. The MatMul has the name of the node, its result keeps its own.

    Returns:
        One note with the number of products, if any.
    """
    namer, count = Namer(model), 0
    for node in list(all_nodes(model)):
        product = _product(node) if node.op_type == "Einsum" and node.domain == "" else None
        if product is not None:
            _write(node, product, namer)
            count += 1
    return [Note("einsum_products", "", f"{count} Einsum are matrix products")] if count else []


@dataclass(frozen=True)
class _Product:
    """What an Einsum computes, letters standing for axes.

    Attributes:
        operands: the tensors that give rows and columns, and the letters of their axes.
        result: letters of the result's.
        batch: of both and of the result.
        summed: of both alone.
        rows: of the first and of the result.
        columns: of the second and of the result.
        sizes: letter → size.
    """

    operands: tuple[tuple[ir.Value, str], tuple[ir.Value, str]]
    result: str
    batch: str
    summed: str
    rows: str
    columns: str
    sizes: dict[str, Size]

    @property
    def groups(self) -> tuple[list[str], list[str], list[str]]:
        """Letters of the axes of the product's operands and of its result; those of one axis in one string."""
        rows = list(self.rows) if self.rows and not self.batch else [self.rows]  # a lone matrix takes rows of many axes
        return (
            [*self.batch, *rows, self.summed],
            [*self.batch, self.summed, self.columns],
            [*self.batch, *rows, self.columns],
        )

    def is_known(self) -> bool:
        """Whether every Reshape that it takes can be written."""
        for groups in self.groups:
            sizes = [self.sizes[letter] for group in groups[_alone(groups) :] for letter in group]
            unknown = sum(not isinstance(size, int) for size in sizes)
            if any(len(group) != 1 for group in groups) and (unknown > 1 or 0 in self.sizes.values()):
                return False
        return True


def _alone(groups: list[str]) -> int:
    """How many axes in front are no groups: they stay where they are."""
    return next((at for at, group in enumerate(groups) if len(group) != 1), len(groups))


def _product(node: ir.Node) -> _Product | None:
    """The matrix product that an Einsum is; None for another."""
    letters, values = _letters(node), [value for value in node.inputs if value is not None]
    if letters is None or len(values) != 2 or len(node.inputs) != 2:
        return None
    first, second, result = letters
    a, b = (values[0], first), (values[1], second)
    if constant_array(values[0]) is not None:
        a, b = b, a  # weights are the second operand of a product
    left, right, wanted = set(a[1]), set(b[1]), set(result)
    sizes = _sizes((a, b))
    summed = "".join(letter for letter in a[1] if letter in right - wanted)
    if sizes is None or not summed or (left ^ right) - wanted:
        return None
    batch, rows, columns = (
        "".join(letter for letter in result if letter in those) for those in (left & right, left - right, right - left)
    )
    found = _Product((a, b), result, batch, summed, rows, columns, sizes)
    return found if found.is_known() else None


def _letters(node: ir.Node) -> tuple[str, str, str] | None:
    """Those of the axes of two operands and of the result; None of other equations: diagonals, an ellipsis."""
    equation = node.attributes["equation"].as_string().replace(" ", "") if "equation" in node.attributes else ""
    terms, arrow, result = equation.partition("->")
    first, comma, second = terms.partition(",")
    if not comma or "," in second or "." in equation:
        return None
    if not arrow:
        result = "".join(sorted(letter for letter in first + second if terms.count(letter) == 1))
    found = first, second, result
    return found if all(len(set(letters)) == len(letters) for letters in found) else None


def _sizes(operands: tuple[tuple[ir.Value, str], tuple[ir.Value, str]]) -> dict[str, Size] | None:
    """The size of each axis; None where one is stretched, a type is no float or a shape is unknown."""
    sizes: dict[str, Size] = {}
    for value, letters in operands:
        if value.dtype is not ir.DataType.FLOAT or value.shape is None or len(value.shape) != len(letters):
            return None
        for letter, dim in zip(letters, value.shape, strict=True):
            size: Size = dim if isinstance(dim, int) else dim.value
            other = sizes.get(letter)
            if letter in sizes and 1 in (size, other) and size != other:
                return None
            sizes[letter] = size if isinstance(size, int) or letter not in sizes else other
    return sizes


def _write(node: ir.Node, product: _Product, namer: Namer) -> None:
    """Put the operators of a product in the place of an Einsum."""
    graph, old = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    (a, left), (b, right) = product.operands
    first, second, last = product.groups
    writer = _Writer(node, graph, namer, product.sizes)
    operands = [writer.arranged(a, left, first), writer.arranged(b, right, second)]
    made = writer.put("MatMul", operands, f"{old.name}_product", name=node.name)
    made = writer.spread(made, last)
    made = writer.turned(made, product.batch + product.rows + product.columns, product.result)
    rename_output(made, old)
    remove_nodes([node])


@dataclass
class _Writer:
    """Puts nodes in front of one."""

    before: ir.Node
    graph: ir.Graph
    namer: Namer
    sizes: dict[str, Size]

    def put(
        self, op: str, inputs: list[ir.Value], result: str, *, name: str | None = None, perm: list[int] | None = None
    ) -> ir.Value:
        """The result of a new node."""
        attributes = {"perm": perm} if perm is not None else None
        node = ir.node(op, inputs, attributes=attributes, name=name or self.namer.node(f"{self.before.name}_{op}"))
        node.outputs[0].name, node.outputs[0].type = self.namer.fresh(result), self.before.outputs[0].type
        self.graph.insert_before(self.before, [node])
        return node.outputs[0]

    def arranged(self, value: ir.Value, letters: str, groups: list[str]) -> ir.Value:
        """A tensor with its axes in the order of groups, each of which is one axis; a constant as another constant."""
        order = "".join(groups)
        array = constant_array(value)
        if array is not None:
            turned = array.transpose([letters.index(letter) for letter in order])
            sizes = dict(zip(order, turned.shape, strict=True))
            made = turned.reshape([math.prod(sizes[letter] for letter in group) for group in groups])
            if made.shape == array.shape and order == letters:
                return value
            home = value.graph if isinstance(value.graph, ir.Graph) else self.graph
            return set_constant(home, self.namer, value.name or "constant", np.ascontiguousarray(made))
        value = self.turned(value, letters, order)
        return value if all(len(group) == 1 for group in groups) else self._reshaped(value, groups, _alone(groups))

    def turned(self, value: ir.Value, letters: str, order: str) -> ir.Value:
        """A tensor with its axes in another order."""
        if order == letters:
            return value
        return self.put("Transpose", [value], f"{value.name}_turned", perm=[letters.index(letter) for letter in order])

    def spread(self, value: ir.Value, groups: list[str]) -> ir.Value:
        """A tensor whose axes are groups with an axis for each letter."""
        if all(len(group) == 1 for group in groups):
            return value
        return self._reshaped(value, list("".join(groups)), _alone(groups))

    def _reshaped(self, value: ir.Value, groups: list[str], alone: int) -> ir.Value:
        """A tensor with other axes; so many in front are those that it has, of any size."""
        sizes = [[self.sizes[letter] for letter in group] for group in groups]
        whole = [math.prod(s for s in group if isinstance(s, int)) for group in sizes]
        shape = [n if all(isinstance(s, int) for s in group) else -1 for n, group in zip(whole, sizes, strict=True)]
        if shape.count(-1) > 1:
            shape[:alone] = [0] * alone  # as it is
        target = set_constant(self.graph, self.namer, f"{value.name}_shape", np.asarray(shape, np.int64))
        return self.put("Reshape", [value, target], f"{value.name}_reshaped")
