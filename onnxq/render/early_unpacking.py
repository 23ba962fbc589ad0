"""Tables whose rows are gathered as integers: unpacked as a whole in front, as the reader finds any stored constant."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.edits import replace_nodes
from onnxq.graph.namer import Namer
from onnxq.graph.values import constant_array, is_stored, only_reader, rank_of

__all__ = ["axis_of_table", "scale_early", "unpack_early"]

_TABLE = 2
"""Axes of a table: rows and columns."""


def axis_of_table(dq: ir.Node, table: ir.Value, indices: ir.Value | None) -> int | None:
    """The axis of the table that the scales lie along; None where it is the one gathered, or cannot be told."""
    axis = dq.attributes.get_int("axis", 1)
    rank = rank_of(indices)
    if table.shape is None:
        return None
    found = len(table.shape) + axis if axis < 0 else axis - rank + 1 if rank is not None else 0
    return found if 0 < found < len(table.shape) else None


def unpack_early(dq: ir.Node, namer: Namer) -> ir.Node | None:
    """Let a DequantizeLinear of rows that a Gather takes from stored integers stand in front of the Gather.

    Both orders give the same numbers, bit for bit: each integer keeps its scale.

    Args:
        dq: replaced by a Gather of its name where it is such a one.
        namer: of the model.

    Returns:
        The DequantizeLinear of the whole table; None where the rows are not a constant's, something else reads the
        integers too, or the scales lie along what is gathered.
    """
    rows = dq.inputs[0]
    gather = rows.producer() if rows is not None else None
    if rows is None or gather is None or gather.op_type != "Gather" or gather.domain not in OF_QUANTIZERS:
        return None
    table, indices = gather.inputs
    scale = constant_array(dq.inputs[1])
    graph = dq.graph
    if table is None or not is_stored(table) or scale is None or not isinstance(graph, ir.Graph):
        return None
    if only_reader(rows) is not dq or gather.graph is not graph or gather.attributes.get_int("axis", 0) != 0:
        return None
    if dq.attributes.get_int("block_size", 0):
        return None
    axis = axis_of_table(dq, table, indices)
    if scale.size > 1 and axis is None:
        return None
    attributes = {"axis": axis} if axis is not None and scale.ndim else None
    unpack = ir.node("DequantizeLinear", [table, *dq.inputs[1:]], attributes, name=namer.node(f"{table.name}_unpacked"))
    unpack.domain = dq.domain
    unpack.outputs[0].name = namer.fresh(f"{table.name}_unpacked")
    unpack.outputs[0].type, unpack.outputs[0].shape = dq.outputs[0].type, table.shape
    late = ir.node("Gather", [unpack.outputs[0], indices], {"axis": 0}, name=dq.name)
    late.outputs[0].type, late.outputs[0].shape = dq.outputs[0].type, dq.outputs[0].shape
    replace_nodes([gather, dq], unpack, late)
    return unpack


def scale_early(product: ir.Node, namer: Namer) -> ir.Node | None:
    """Let a Cast and a Mul of rows that a Gather takes from stored integers stand in front of the Gather.

    Args:
        product: the Mul, with a scale for each column; replaced by a Gather of its name where it is such a one.
        namer: of the model.

    Returns:
        The Mul of the whole table; None where the rows are not a constant's, or something else reads them too.
    """
    found = _scaled_rows(product)
    if found is None:
        return None
    gather, cast = found
    (table, indices), scale = gather.inputs, product.inputs[1]
    assert table is not None
    wide = ir.node("Cast", [table], {"to": cast.attributes["to"].as_int()}, name=namer.node(f"{table.name}_Cast"))
    unpack = ir.node("Mul", [wide.outputs[0], scale], name=namer.node(f"{table.name}_unpacked"))
    for node, word in ((wide, "cast"), (unpack, "unpacked")):
        node.outputs[0].name = namer.fresh(f"{table.name}_{word}")
        node.outputs[0].type, node.outputs[0].shape = product.outputs[0].type, table.shape
    late = ir.node("Gather", [unpack.outputs[0], indices], {"axis": 0}, name=product.name)
    late.outputs[0].type, late.outputs[0].shape = product.outputs[0].type, product.outputs[0].shape
    replace_nodes([gather, cast, product], wide, unpack, late)
    return unpack


def _scaled_rows(product: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The Gather of rows of a stored table and the Cast that a Mul with a scale for each column stands behind."""
    cast = product.inputs[0].producer() if product.inputs[0] is not None else None
    rows = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    gather = rows.producer() if rows is not None else None
    if rows is None or cast is None or gather is None:
        return None
    if gather.op_type != "Gather" or gather.domain not in OF_QUANTIZERS or gather.attributes.get_int("axis", 0) != 0:
        return None
    if only_reader(rows) is not cast or only_reader(cast.outputs[0]) is not product:
        return None
    if not isinstance(product.graph, ir.Graph) or gather.graph is not product.graph or cast.graph is not product.graph:
        return None
    table, numbers = gather.inputs[0], constant_array(product.inputs[1])
    if table is None or not is_stored(table) or table.shape is None or len(table.shape) != _TABLE or numbers is None:
        return None
    return (gather, cast) if numbers.shape == table.shape.numpy()[1:] else None
