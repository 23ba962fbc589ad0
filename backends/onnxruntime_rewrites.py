"""Last rewritings of a QDQ model for onnxruntime: what makes it fast, and what keeps it from failing there.

All of them leave the numbers as they are. Each says what onnxruntime 1.31 does otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxq.backends.onnxruntime_limits import certain, keep_layout
from onnxq.graph.namer import Namer
from onnxq.graph.prune import remove_dead
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant, remove_nodes, rename_output, set_constant

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["finish"]

_UNPACKED = (ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16)
_NARROW_CAST = 21
"""Opset from which on a Cast takes 4-bit integers."""
_WIDENED = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}


def _keep_apart(model: ir.Model) -> None:
    """Give the bias added to a quantized MatMul the rank of the sum.

    Adding a vector behind a MatMul of static shape is fused into a float Gemm before onnxruntime looks at Q and DQ,
    and the weights are then dequantized at every run. A bias of shape (1, 1, N) is left alone: MatMulIntegerToFloat,
    then Add.
    """
    namer = Namer(model)
    for node in all_nodes(model):
        if node.op_type != "Add":
            continue
        for position in (0, 1):
            bias, other = node.inputs[position], node.inputs[1 - position]
            matmul = other.producer() if other is not None else None
            if (
                bias is not None
                and other is not None
                and matmul is not None
                and matmul.op_type == "MatMul"
                and is_constant(bias)
                and not bias.is_graph_output()
                and bias.shape is not None
                and len(bias.shape) == 1
                and other.shape is not None
                and len(other.shape) > 2
                and any(
                    v is not None and (p := v.producer()) and p.op_type == "DequantizeLinear" for v in matmul.inputs
                )
            ):
                array = constant_array(bias)
                if array is not None and isinstance(node.graph, ir.Graph):
                    shaped = array.reshape((1,) * (len(other.shape) - 1) + (-1,))
                    if len(bias.uses()) == 1 and isinstance(bias.graph, ir.Graph):
                        bias.const_value = ir.tensor(shaped, name=bias.name)
                        bias.shape = ir.Shape(shaped.shape)
                    else:
                        home = bias.graph if isinstance(bias.graph, ir.Graph) else node.graph
                        node.replace_input_with(position, set_constant(home, namer, f"{bias.name}_row", shaped))


def _is_stored(value: ir.Value | None) -> bool:
    """Whether a value is a constant, widened when the model is loaded or not."""
    cast = value.producer() if value is not None else None
    return is_constant(value) or (cast is not None and cast.op_type == "Cast" and is_constant(cast.inputs[0]))


def _unpack_late(model: ir.Model) -> None:
    """Gather rows of a stored table as integers and dequantize only those."""
    namer = Namer(model)
    for node in list(all_nodes(model)):
        table = node.inputs[0] if node.op_type == "Gather" and node.inputs else None
        unpack = table.producer() if table is not None else None
        if table is None or unpack is None or unpack.op_type != "DequantizeLinear" or not _is_stored(unpack.inputs[0]):
            continue
        stored, graph, rows = unpack.inputs[0], node.graph, node.outputs[0]
        if node.attributes.get_int("axis", 0) != 0:
            continue
        indices = node.inputs[1]
        rank = len(indices.shape) if indices is not None and indices.shape is not None else None
        axis = unpack.attributes.get_int("axis", 1)
        if stored is None or stored.dtype is None or not isinstance(graph, ir.Graph):
            continue
        if unpack.inputs[1] is not None and unpack.inputs[1].shape and (rank is None or axis != 1):
            continue  # a scale for each column, and no telling which axis the columns end up on
        gather = ir.node("Gather", [stored, indices], name=namer.node(f"{node.name}_rows"))
        gather.outputs[0].name = namer.fresh(f"{rows.name}_quantized")
        gather.outputs[0].type = ir.TensorType(stored.dtype)
        attributes = {"axis": rank} if rank is not None and unpack.inputs[1] is not None else None
        late = ir.node("DequantizeLinear", [gather.outputs[0], *unpack.inputs[1:]], attributes, name=node.name)
        graph.insert_before(node, [gather, late])
        rename_output(late.outputs[0], rows)
        remove_nodes([node])
        if not table.uses() and not table.is_graph_output():
            remove_nodes([unpack])


def _widen_at_load(model: ir.Model) -> None:
    """Widen stored 4-bit integers to 8 bits in front of their DequantizeLinear.

    onnxruntime has no kernels for 4-bit weights of convolutions and matrix products, and would dequantize them at every
    run. The Cast it computes once, when it loads the model; behind it stands what becomes an integer kernel.
    """
    if model.opset_imports.get("", 0) < _NARROW_CAST:
        return
    namer = Namer(model)
    for node in list(all_nodes(model)):
        stored = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        wide = None if stored is None or stored.dtype is None else _WIDENED.get(stored.dtype)
        graph = node.graph
        if stored is None or wide is None or not isinstance(graph, ir.Graph) or not is_constant(stored):
            continue
        zero = constant_array(node.inputs[2]) if len(node.inputs) > 2 else None
        blocks = node.attributes.get_int("block_size", 0) > 0
        if blocks or (len(node.inputs) > 2 and zero is None):
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
    remove_dead(model)


def _unpack_at_load(model: ir.Model, plan: Plan) -> None:
    """Write the unpacking of weights of layers that compute in float as Cast and Mul.

    onnxruntime computes those once, when it loads the model; a DequantizeLinear it would compute at every run, and that
    of a MatMul with float data (of a narrow grid, say) become MatMulNBits, which rounds the data to 8 bits anew.
    """
    namer, opset = Namer(model), model.opset_imports.get("", 0)
    unpacked: dict[ir.Value, ir.Value] = {}
    for node in list(all_nodes(model)):
        if not (node.name in plan.stored or _has_float_data(node)) or node.op_type == "Gather":
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


def _cast_and_scale(dq: ir.Node, namer: Namer, opset: int) -> ir.Value | None:
    stored, graph = dq.inputs[0], dq.graph
    scale = constant_array(dq.inputs[1])
    zero = constant_array(dq.inputs[2]) if len(dq.inputs) > 2 else None
    if stored is None or stored.shape is None or scale is None or not isinstance(graph, ir.Graph):
        return None
    if stored.dtype is ir.DataType.INT4 and opset < _NARROW_CAST:
        return None
    if (zero is not None and zero.any()) or stored.dtype not in _UNPACKED or dq.attributes.get_int("block_size", 0) > 0:
        return None
    if scale.ndim:
        shape = [1] * len(stored.shape)
        shape[dq.attributes.get_int("axis", 1)] = -1
        scale = scale.reshape(shape)
    base = (dq.outputs[0].name or "weight").removesuffix("_dequantized")
    factor = set_constant(graph, namer, f"{base}_factor", scale)
    cast = ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)}, name=namer.node(f"{base}_Cast"))
    scaled = ir.node("Mul", [cast.outputs[0], factor], name=namer.node(f"{base}_Mul"))
    for made, suffix in ((cast, "cast"), (scaled, "unpacked")):
        made.outputs[0].name = namer.fresh(f"{base}_{suffix}")
        made.outputs[0].type, made.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(stored.shape.dims)
    graph.insert_before(dq, [cast, scaled])
    return scaled.outputs[0]


def _write_signed_pairs(model: ir.Model) -> None:
    """Write quantizers of int8 activations in onnxruntime's own domain from opset 21 on.

    onnxruntime 1.31 moves such a pair past data movement with an ``output_dtype``, then makes it uint8 and finds that
    the two do not match: the session is not created. Its own operators know no ``output_dtype``.
    """
    if model.opset_imports.get("", 0) < 21:
        return
    for node in all_nodes(model):
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        signed = zero is not None and zero.dtype is ir.DataType.INT8 and not _is_stored(node.inputs[0])
        if signed and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = "com.microsoft"
            model.opset_imports["com.microsoft"] = 1


_MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""What onnxruntime moves a DequantizeLinear through."""


def _shield_bodies(model: ir.Model) -> None:
    """Put a pair behind float data movement of which an If, Loop or Scan body reads the result.

    onnxruntime 1.31 moves the DequantizeLinear in front of it through to the reader, looks for that reader's input and
    aborts the process, since a body's tensors from outside are no inputs. A pair of the same parameters stops it there,
    and changes no number: what data movement gives back lies on the grid already.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        moved = node.outputs[0]
        inner = [use for use in moved.uses() if use.node.graph is not node.graph]
        dq = _dequantizer_before(node) if inner else None
        if dq is None or not isinstance(node.graph, ir.Graph):
            continue
        quantize = ir.node("QuantizeLinear", [moved, *dq.inputs[1:]], name=namer.node(f"{node.name}_QuantizeLinear"))
        back = ir.node(
            "DequantizeLinear",
            [quantize.outputs[0], *dq.inputs[1:]],
            name=namer.node(f"{node.name}_DequantizeLinear"),
        )
        for made, suffix, like in ((quantize, "quantized", dq.inputs[0]), (back, "dequantized", moved)):
            made.outputs[0].name = namer.fresh(f"{moved.name}_{suffix}")
            made.outputs[0].type = like.type if like is not None else None
            made.outputs[0].shape = moved.shape.copy() if moved.shape is not None else None
        node.graph.insert_after(node, [quantize, back])
        for use in inner:
            use.node.replace_input_with(use.idx, back.outputs[0])


_VANISHING = _MOVES | {"Cast", "Clip", "Concat", "Dropout", "Expand", "Flatten", "Identity", "Pad", "Relu"}
"""What onnxruntime takes out where it changes nothing, or where the integers do the same."""


def _hoist_dequantizers(model: ir.Model) -> None:
    """Move a DequantizeLinear out of an If, Loop or Scan body where onnxruntime 1.31 cannot have it there.

    That is so for the weight of a MatMul whose data is float, which onnxruntime then looks for in the body's own graph,
    and for integers that were dequantized, passed through what may vanish at most, and quantized again: where the two
    quantizers turn out to be the same, it takes the body's tensor from outside for an input, and aborts the process.
    """
    for dq in list(all_nodes(model)):
        integers = dq.inputs[0] if dq.op_type == "DequantizeLinear" else None
        home = integers.graph if integers is not None else None
        body = dq.graph
        if integers is None or not isinstance(home, ir.Graph) or not isinstance(body, ir.Graph) or home is body:
            continue
        quantizer = integers.producer()
        if quantizer is None:
            needed = any(index == 1 and _has_float_data(reader) for reader, index in dq.outputs[0].uses())
        else:
            before = quantizer.inputs[0].producer() if quantizer.inputs[0] is not None else None
            while before is not None and before.op_type in _VANISHING and before.inputs[0] is not None:
                before = before.inputs[0].producer()
            needed = before is not None and before.op_type == "DequantizeLinear"
        if needed:
            body.remove(dq)
            if quantizer is not None:
                home.insert_after(quantizer, [dq])
            else:
                home.insert_before(home[0], [dq])


def _has_float_data(node: ir.Node) -> bool:
    """Whether it is a MatMul of data that was not dequantized."""
    data = node.inputs[0] if node.op_type == "MatMul" else None
    producer = data.producer() if data is not None else None
    return data is not None and (producer is None or producer.op_type != "DequantizeLinear")


def _dequantizer_before(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear with one scale that data movement leads back to."""
    current: ir.Node | None = node
    while current is not None and current.op_type in _MOVES and current.inputs[0] is not None:
        current = current.inputs[0].producer()
    if current is None or current is node or current.op_type != "DequantizeLinear":
        return None
    scale = constant_array(current.inputs[1])
    return current if scale is not None and scale.ndim == 0 else None


def finish(model: ir.Model, plan: Plan) -> None:
    """All rewritings, in place.

    Args:
        model: a rendered QDQ model.
        plan: where it is quantized.
    """
    certain(model)
    _keep_apart(model)
    _unpack_at_load(model, plan)
    _widen_at_load(model)
    _unpack_late(model)
    keep_layout(model)
    _shield_bodies(model)
    _hoist_dequantizers(model)
    _write_signed_pairs(model)
