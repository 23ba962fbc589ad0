"""When onnxruntime 1.31 unpacks the integers that weights and tables are stored as: once, when it loads, or late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import remove_nodes, replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant, is_stored, only_reader, rank_of, reads_as_much

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["has_float_data", "unpack_at_load", "unpack_late", "widen_at_load"]

_UNPACKED = (ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16)
_NARROW_CAST = 21
"""Opset from which on a Cast takes 4-bit integers."""
_TABLE = 2
"""Axes of a table: rows and columns."""
_WIDENED = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}


def unpack_late(model: ir.Model) -> None:
    """Gather rows of a stored table as integers and unpack only those, where they are fewer numbers than the table has.

    With a scale for each column they are unpacked by Cast and Mul: a DequantizeLinear of several scales takes
    onnxruntime 1.31 four times as long as reading float rows, and is doubled where data movement follows it. Where the
    rows are quantized again on the table's grid, onnxruntime gathers integers as it is.
    """
    namer, done = Namer(model), False
    for node in list(all_nodes(model)):
        table = node.inputs[0] if node.op_type == "Gather" and node.inputs else None
        unpack = table.producer() if table is not None else None
        if table is None or unpack is None or unpack.op_type != "DequantizeLinear" or not is_stored(unpack.inputs[0]):
            continue
        if not _unpack_rows(node, unpack, namer):
            continue
        done = True
        if not table.uses() and not table.is_graph_output():
            remove_nodes([unpack])
    if done:
        remove_dead(model)


def _unpack_rows(node: ir.Node, unpack: ir.Node, namer: Namer) -> bool:
    """Let a Gather take rows of the integers that its table is unpacked from, and unpack those; False where it stays.

    Args:
        node: the Gather.
        unpack: the DequantizeLinear of its table.
        namer: of the model.
    """
    stored, indices, rows = unpack.inputs[0], node.inputs[1], node.outputs[0]
    rank = rank_of(indices)
    if node.attributes.get_int("axis", 0) != 0 or stored is None or stored.dtype is None:
        return False
    if not isinstance(node.graph, ir.Graph) or _packed_again(rows, unpack) or reads_as_much(rows, stored):
        return False
    several = unpack.inputs[1] is not None and bool(unpack.inputs[1].shape)
    plain = unpack.attributes.get_int("axis", 1) == 1 and unpack.attributes.get_int("block_size", 0) <= 0
    if several and (rank is None or not plain):
        return False  # a scale for each column, and no telling which axis the columns end up on
    gather = ir.node("Gather", [stored, indices], name=namer.node(f"{node.name}_rows"))
    gather.outputs[0].name = namer.fresh(f"{rows.name}_quantized")
    gather.outputs[0].type = ir.TensorType(stored.dtype)
    made = _scaled_columns(gather, unpack, namer) if several else None
    if made is None:
        attributes = {"axis": rank} if rank is not None and unpack.inputs[1] is not None else None
        made = [ir.node("DequantizeLinear", [gather.outputs[0], *unpack.inputs[1:]], attributes)]
    made[-1].name = node.name
    replace_nodes([node], gather, *made)
    return True


def _scaled_columns(gather: ir.Node, unpack: ir.Node, namer: Namer) -> list[ir.Node] | None:
    """Cast and Mul that unpack rows of integers, a scale for each column; None where those have a zero point."""
    integers, table, scale = gather.outputs[0], gather.inputs[0], unpack.inputs[1]
    zero = constant_array(unpack.inputs[2]) if len(unpack.inputs) > 2 else np.zeros(1)
    plain = rank_of(table) == _TABLE
    if integers.dtype is not ir.DataType.INT8 or not plain or zero is None or zero.any():
        return None
    cast = ir.node("Cast", [integers], {"to": int(ir.DataType.FLOAT)}, name=namer.node(f"{integers.name}_Cast"))
    cast.outputs[0].name = namer.fresh(f"{integers.name}_cast")
    cast.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return [cast, ir.node("Mul", [cast.outputs[0], scale])]


def _packed_again(rows: ir.Value, unpack: ir.Node) -> bool:
    """Whether nothing but a quantizer reads a tensor, with the numbers of a DequantizeLinear, of one scale."""
    behind = only_reader(rows)
    if behind is None or behind.op_type != "QuantizeLinear" or len(behind.inputs) != len(unpack.inputs):
        return False
    pairs = [(constant_array(a), constant_array(b)) for a, b in zip(behind.inputs[1:], unpack.inputs[1:], strict=True)]
    return all(
        a is not None and b is not None and a.size == b.size == 1 and a.dtype == b.dtype and a.item() == b.item()
        for a, b in pairs
    )


def widen_at_load(model: ir.Model) -> None:
    """Widen stored 4-bit integers to 8 bits in front of their DequantizeLinear.

    onnxruntime has no kernels for 4-bit weights of convolutions and matrix products, and would dequantize them at every
    run. The Cast it computes once, when it loads the model; behind it stands what becomes an integer kernel. So it does
    a Sub of zero points: with one for each channel its kernels are many times slower than in float.
    """
    if model.opset_imports.get("", 0) < _NARROW_CAST:
        return
    namer, done = Namer(model), False
    for node in list(all_nodes(model)):
        stored = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        wide = None if stored is None or stored.dtype is None else _WIDENED.get(stored.dtype)
        graph = node.graph
        if stored is None or wide is None or not isinstance(graph, ir.Graph) or not is_constant(stored):
            continue
        zero = constant_array(input_of(node, 2))
        blocks = node.attributes.get_int("block_size", 0) > 0
        if blocks or (len(node.inputs) > 2 and zero is None):
            continue
        done = True
        if zero is not None and zero.ndim and (stored.dtype is ir.DataType.UINT4 or zero.any()):
            _shift_at_load(node, stored, zero, namer)
            continue
        cast = ir.node("Cast", [stored], {"to": int(wide)}, name=namer.node(f"{stored.name}_Cast"))
        cast.outputs[0].name = namer.fresh(f"{stored.name}_widened")
        cast.outputs[0].type = ir.TensorType(wide)
        cast.outputs[0].shape = stored.shape
        graph.insert_before(node, [cast])
        node.replace_input_with(0, cast.outputs[0])
        if zero is not None:
            wider = set_constant(graph, namer, f"{stored.name}_zero_point", zero.astype(wide.numpy()))
            node.replace_input_with(2, wider)
    if done:
        remove_dead(model)


def _shift_at_load(dq: ir.Node, stored: ir.Value, zero: NDArray[Any], namer: Namer) -> None:
    """Take zero points of 4-bit integers from them in front of a DequantizeLinear, which then has zeros of int8."""
    graph = dq.graph
    assert isinstance(graph, ir.Graph) and stored.shape is not None
    shape = [1] * len(stored.shape)
    shape[dq.attributes.get_int("axis", 1)] = -1
    points = set_constant(graph, namer, f"{stored.name}_zero_points", zero.astype(np.int32).reshape(shape))
    value = stored
    for op, more, dtype in (
        ("Cast", [], ir.DataType.INT32),
        ("Sub", [points], ir.DataType.INT32),
        ("Cast", [], ir.DataType.INT8),
    ):
        attributes = {"to": int(dtype)} if op == "Cast" else None
        made = ir.node(op, [value, *more], attributes, name=namer.node(f"{stored.name}_{op}"))
        made.outputs[0].name = namer.fresh(f"{stored.name}_widened")
        made.outputs[0].type, made.outputs[0].shape = ir.TensorType(dtype), stored.shape
        graph.insert_before(dq, [made])
        value = made.outputs[0]
    dq.replace_input_with(0, value)
    dq.replace_input_with(2, set_constant(graph, namer, f"{stored.name}_zero_point", np.zeros(zero.shape, np.int8)))


def unpack_at_load(model: ir.Model, plan: Plan) -> None:
    """Write the unpacking of weights of layers that compute in float as Cast and Mul.

    onnxruntime computes those once, when it loads the model; a DequantizeLinear it would compute at every run, and that
    of a MatMul with float data (of a narrow grid, say) become MatMulNBits, which rounds the data to 8 bits anew.
    """
    namer, opset = Namer(model), model.opset_imports.get("", 0)
    unpacked: dict[ir.Value, ir.Value] = {}
    for node in list(all_nodes(model)):
        if not (node.name in plan.stored or has_float_data(node)) or _takes_few(node):
            continue
        for position, value in enumerate(node.inputs):
            dq = value.producer() if value is not None else None
            if value is None or dq is None or dq.op_type != "DequantizeLinear" or not is_constant(dq.inputs[0]):
                continue
            if value not in unpacked and (made := _cast_and_scale(dq, namer, opset)) is not None:
                unpacked[value] = made
            if value in unpacked:
                node.replace_input_with(position, unpacked[value])
            if not value.uses() and not value.is_graph_output():
                remove_nodes([dq])
    remove_dead(model)


def _takes_few(node: ir.Node) -> bool:
    """Whether it is a Gather of fewer numbers than its table has, which are unpacked as they are read."""
    table = node.inputs[0] if node.op_type == "Gather" else None
    return table is not None and not reads_as_much(node.outputs[0], table)


def _cast_and_scale(dq: ir.Node, namer: Namer, opset: int) -> ir.Value | None:
    stored, graph = dq.inputs[0], dq.graph
    scale = constant_array(dq.inputs[1])
    zero = constant_array(input_of(dq, 2))
    if stored is None or stored.shape is None or scale is None or not isinstance(graph, ir.Graph):
        return None
    if stored.dtype in _WIDENED and opset < _NARROW_CAST:
        return None
    shift = zero if zero is not None and (stored.dtype is ir.DataType.UINT4 or zero.any()) else None
    if stored.dtype not in (_UNPACKED if shift is None else _WIDENED) or dq.attributes.get_int("block_size", 0) > 0:
        return None
    if scale.ndim:
        shape = [1] * len(stored.shape)
        shape[dq.attributes.get_int("axis", 1)] = -1
        scale = scale.reshape(shape)
        shift = shift.reshape(shape) if shift is not None else None
    base = (dq.outputs[0].name or "weight").removesuffix("_dequantized")
    factor = set_constant(graph, namer, f"{base}_factor", scale)
    steps = {"cast": ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)}, name=namer.node(f"{base}_Cast"))}
    last = steps["cast"].outputs[0]
    if shift is not None:
        points = set_constant(graph, namer, f"{base}_zero_points", shift.astype(np.float32))
        steps["shifted"] = ir.node("Sub", [last, points], name=namer.node(f"{base}_Sub"))
        last = steps["shifted"].outputs[0]
    steps["unpacked"] = ir.node("Mul", [last, factor], name=namer.node(f"{base}_Mul"))
    for suffix, made in steps.items():
        made.outputs[0].name = namer.fresh(f"{base}_{suffix}")
        made.outputs[0].type, made.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(stored.shape.dims)
    graph.insert_before(dq, list(steps.values()))
    return steps["unpacked"].outputs[0]


def has_float_data(node: ir.Node) -> bool:
    """Whether it is a MatMul of data that was not dequantized."""
    data = node.inputs[0] if node.op_type == "MatMul" else None
    producer = data.producer() if data is not None else None
    return data is not None and (producer is None or producer.op_type != "DequantizeLinear")
