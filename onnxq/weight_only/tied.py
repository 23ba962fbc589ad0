"""Tables whose rows are picked and that a product multiplies with as well: a language model's embedding, and its head.

Such a table is stored once where the product can read it as it is: MatMulNBits of 8 bits lays integers, scales and zero
points out as GatherBlockQuantized does, but for the shape of the integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.namer import Namer
from onnxq.graph.values import set_constant
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.grid import chunks
from onnxq.weight_only.recipe import TABLE_BITS, Recipe
from onnxq.weight_only.tensors import read, read_rows

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
    return [replace(m, tied=_table_of(m, tables, recipe)) for m in matrices]


def _table_of(matrix: Matrix, tables: Sequence[Matrix], recipe: Recipe) -> str:
    if not matrix.multiplied or matrix.asked not in (None, TABLE_BITS):
        return ""
    whole = matrix.shape[1] % recipe.block == 0
    if not whole or recipe.fitting_block(matrix.shape[1], TABLE_BITS) != recipe.block:
        return ""
    found = (t for t in tables if t.shape == matrix.shape and t.value.graph is matrix.value.graph)
    return next((t.value.name or "" for t in found if _equal(matrix, t)), "")


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
        codes: uint8, (outputs, inputs).
        matrix: that is tied to the table.
        recipe: how it is stored.
    """
    outputs, inputs = matrix.shape
    shape = (outputs, inputs // recipe.block, recipe.block)
    if isinstance(codes, ir.ExternalTensor):
        return ir.ExternalTensor(
            codes.location, codes.offset, codes.length, codes.dtype, shape=ir.Shape(shape), name=codes.name or ""
        )
    return ir.Tensor(codes.numpy().reshape(shape))


def constants_of_both(
    table: Sequence[ir.Value], codes: ir.TensorProtocol, shape: tuple[int, int], namer: Namer
) -> list[ir.Value]:
    """Integers, scales and zero points for a product, of which the table's integers become a Reshape.

    Args:
        table: its constants, initializers of a graph; the first, the integers, is one no longer.
        codes: the same integers in the shape of the product.
        shape: of the table.
        namer: of the model.
    """
    old, *others = table
    home, name = old.graph, old.name or ""
    assert isinstance(home, ir.Graph)
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
