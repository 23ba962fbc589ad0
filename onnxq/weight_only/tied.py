"""Tables whose rows are picked and that a product multiplies with as well: a language model's embedding, and its head.

Such a table is stored once where the product can read it as it is: MatMulNBits lays integers, scales and zero points of
as many bits out as GatherBlockQuantized does, but for the shape of the integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.unmapped import read, read_rows
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.grid import chunks
from onnxq.weight_only.recipe import Recipe

__all__ = ["constants_of_both", "for_product", "tie"]


def tie(matrices: Sequence[Matrix], recipe: Recipe) -> list[Matrix]:
    """The matrices, those that multiply with the numbers of a table marked so.

    Args:
        matrices: of a model.
        recipe: how they are stored.
    """
    if recipe.format != "matmulnbits":
        return list(matrices)
    tables = [m for m in matrices if m.gathered and not m.whole and len(m.rows) == 1]
    found = ((m, _table_of(m, tables, recipe)) for m in matrices)
    return [m if t is None else replace(m, tied=t.value.name or "", asked=t.asked and t.bits(recipe)) for m, t in found]


def _table_of(matrix: Matrix, tables: Sequence[Matrix], recipe: Recipe) -> Matrix | None:
    """The table of the numbers, bits and blocks of a product's weight, if there is one."""
    if not matrix.multiplied or matrix.shape[1] % recipe.block:
        return None
    for table in tables:
        bits = table.bits(recipe)
        alike = table.shape == matrix.shape and table.value.graph is matrix.value.graph
        fits = matrix.asked in (None, bits) and recipe.fitting_block(matrix.shape[1], bits) == recipe.block
        if alike and fits and _equal(matrix, table):
            return table
    return None


def _equal(matrix: Matrix, table: Matrix) -> bool:
    """Whether two matrices hold the same numbers; no more than one is in memory as a whole."""
    if matrix.value is table.value:
        return True
    one, other = matrix.value.const_value, table.value.const_value
    assert one is not None and other is not None
    if one.dtype != other.dtype:
        return False
    weight = read(one)
    weight = weight.T if matrix.axis == 0 else weight
    return all(np.array_equal(weight[part], read_rows(other, part)) for part in chunks(*matrix.shape))


def for_product(codes: ir.TensorProtocol, matrix: Matrix, recipe: Recipe) -> ir.TensorProtocol:
    """The integers of a table in the shape that MatMulNBits reads, the same bytes of a file where they lie in one.

    Args:
        codes: uint8, (outputs, inputs * bits / 8).
        matrix: that is tied to the table.
        recipe: how it is stored.
    """
    shape = (matrix.shape[0], matrix.shape[1] // recipe.block, recipe.block * matrix.bits(recipe) // 8)
    if isinstance(codes, ir.ExternalTensor):
        return ir.ExternalTensor(
            codes.location, codes.offset, codes.length, codes.dtype, shape=ir.Shape(shape), name=codes.name or ""
        )
    return ir.Tensor(codes.numpy().reshape(shape))


def constants_of_both(table: Sequence[ir.Value], codes: ir.TensorProtocol, namer: Namer) -> list[ir.Value]:
    """Integers, scales and zero points for a product, of which the table's integers become a Reshape.

    Args:
        table: its constants, initializers of a graph; the first, the integers, is one no longer.
        codes: the same integers in the shape of the product.
        namer: of the model.
    """
    old, *others = table
    home, name = old.graph, old.name or ""
    assert isinstance(home, ir.Graph) and old.const_value is not None
    shape = old.const_value.shape.numpy()
    del home.initializers[name]
    codes.name = name
    held = ir.Value(name=name, shape=ir.Shape(codes.shape.numpy()), type=old.type, const_value=codes)
    size: NDArray[np.int64] = np.asarray(shape, np.int64)
    rows = set_constant(home, namer, f"{name}_shape", size)
    node = ir.node("Reshape", [held, rows], name=namer.node(f"{name}_Reshape"))
    node.outputs[0].name, node.outputs[0].type = namer.fresh(f"{name}_rows"), old.type
    node.outputs[0].shape = ir.Shape(shape)
    old.replace_all_uses_with(node.outputs[0])
    home.register_initializer(held)
    home.insert_before(home[0], node)
    return [held, *others]
