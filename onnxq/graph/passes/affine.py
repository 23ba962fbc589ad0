"""Folding a scale and a shift a channel into the layer before or after them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, replace_value, set_constant, stand_for
from onnxq.graph.layer import Channels, Layer, Refusal, Shared, check_finite, replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import describe

__all__ = ["fold_into_next", "fold_into_previous", "scale_and_shift"]


def scale_and_shift(op: str, index: int, constant: Channels) -> tuple[Channels, Channels] | None:
    """What arithmetic with a constant does to its other input x, as ``scale * x + shift``; None for other operators.

    Args:
        op: of two inputs.
        index: which of them x is.
        constant: the numbers of the other one, as many as are wanted of both.
    """
    ones, zeros = np.ones_like(constant), np.zeros_like(constant)
    match op, index:
        case "Mul", _:
            return constant, zeros
        case "Add", _:
            return ones, constant
        case "Sub", 0:
            return ones, -constant
        case "Sub", 1:
            return -ones, constant
        case "Div", 0 if np.all(constant != 0):
            return 1.0 / constant, zeros
    return None


def fold_into_previous(layer: Layer, node: ir.Node, scale: Channels, shift: Channels, namer: Namer) -> None:
    """Lets ``layer`` compute ``scale * y + shift`` in place of y, and removes ``node``, which did it.

    In float64, rounded once: W' = scale W, b' = scale b + shift. Weights that others read too are copied. The layer's
    output gets the name of the node's, a product before its bias a new one where it is scaled. A MatMul without bias
    gets an Add where the shift is not zero.

    Args:
        layer: what makes the node's data input.
        node: the node to remove; its first output is the one in use.
        scale: (M,) for each output channel.
        shift: (M,).
        namer: names new constants and nodes.

    Raises:
        Refusal: why it cannot be done; nothing has been changed.
    """
    made, last = layer.output, node.outputs[0]
    if made.producer() is None or (layer.add or layer.node).graph is not node.graph:
        raise Refusal(f"it is in another graph than {describe(layer.node)}")
    if made.is_graph_output():
        raise Shared(f"'{made.name}' is a graph output, so it must stay as it is")
    if len(made.uses()) != 1:
        raise Shared(f"'{made.name}' is read by {len(made.uses())} nodes")
    dtype = layer.weight.dtype
    if dtype is None:
        raise Refusal("the type of the weight is unknown")
    scaling = bool(np.any(scale != 1.0))
    shifting = bool(np.any(shift != 0.0))
    weight = layer.scaled(scale) if scaling else None
    old_bias = layer.bias_array()
    # A Gemm's and an Add's bias lie along the last axis, as a number a channel does: the same arithmetic for all.
    bias = shift if old_bias is None else old_bias * scale + shift
    check_finite(*(array for array in (weight, bias) if array is not None), dtype=dtype)
    base = layer.node.name or "layer"
    if weight is not None:
        replace_constant(layer.node, 1, weight, namer, f"{base}_weight", dtype)
        if layer.add is not None or (shifting and layer.node.op_type == "MatMul"):
            _rename_product(layer.node, namer)
    if shifting or old_bias is not None:
        if layer.node.op_type != "MatMul":
            replace_constant(layer.node, 2, bias, namer, f"{base}_bias", dtype)
            if layer.node.op_type == "Gemm":
                layer.node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
        elif layer.add is not None:
            index = 0 if layer.add.inputs[0] is layer.bias else 1
            replace_constant(layer.add, index, bias, namer, f"{base}_bias", dtype)
        else:
            _add_after_matmul(layer, node, bias, namer)
            return
    node.replace_input_with(_index_of(node, made), None)
    rename_output(made, last)
    remove_nodes([node])


def _rename_product(node: ir.Node, namer: Namer) -> None:
    """A new name for what holds other numbers than those that all know by the old one, which is now the node's."""
    stand_for(node, [node])
    product = node.outputs[0]
    product.name = namer.fresh(f"{product.name}_product")


def _index_of(node: ir.Node, value: ir.Value) -> int:
    return next(index for index, other in enumerate(node.inputs) if other is value)


def _add_after_matmul(layer: Layer, node: ir.Node, bias: Channels, namer: Namer) -> None:
    graph, dtype = layer.node.graph, layer.weight.dtype
    if graph is None or dtype is None:
        raise Refusal("the layer belongs to no graph")
    made, last = layer.output, node.outputs[0]
    constant = set_constant(graph, namer, f"{layer.node.name}_bias", bias.astype(dtype.numpy()))
    add = ir.Node("", "Add", [made, constant], name=namer.node(f"{layer.node.name}_bias"), num_outputs=1)
    add.outputs[0].name = namer.fresh(f"{last.name}_biased")
    graph.insert_before(node, add)
    node.replace_input_with(_index_of(node, made), None)
    rename_output(add.outputs[0], last)
    remove_nodes([node])


def _pads_nothing(node: ir.Node, kernel: tuple[int, ...]) -> bool:
    """Whether a Conv reads only real input: no padding, or a 1x1 kernel for which SAME pads nothing."""
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto == "VALID":
        return True
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return all(size == 1 for size in kernel)
    pads = node.attributes["pads"].as_ints() if "pads" in node.attributes else ()
    return not any(pads)


def fold_into_next(
    layer: Layer, node: ir.Node, scale: Channels, shift: Channels, namer: Namer, *, data: int = 0
) -> None:
    """Lets ``layer`` read x itself, with weights that do the node's ``scale * x + shift`` too, and removes ``node``.

    W' = W scale, b' = b + W shift, which a zero padding of ``scale * x + shift`` forbids unless the shift is zero.

    Args:
        layer: the only reader of the node's output; it must not be the pair of a MatMul and an Add.
        node: the node to remove.
        scale: (C,) for each input channel.
        shift: (C,).
        namer: names new constants and nodes.
        data: which input of the node is x.

    Raises:
        Refusal: why it cannot be done; nothing has been changed.
    """
    dtype = layer.weight.dtype
    source = node.inputs[data]
    if dtype is None or source is None:
        raise Refusal("a type is unknown")
    if layer.node.graph is not node.graph:
        raise Refusal(f"it is in another graph than {describe(layer.node)}")
    if layer.in_channels() != scale.size:
        raise Refusal(f"{describe(layer.node)} reads {layer.in_channels()} channels, not {scale.size}")
    if layer.node.op_type == "MatMul" and len(layer.array_shape()) > 2:
        raise Refusal("its weight has more than two dimensions")
    trans_a: int = layer.node.attributes.get_int("transA", 0)
    if layer.node.op_type == "Gemm" and trans_a:
        raise Refusal("the Gemm after it reads its input transposed")
    weight = layer.scaled_inputs(scale)
    bias = layer.bias_array()
    if np.any(shift != 0.0):
        if layer.node.op_type == "Conv" and not _pads_nothing(layer.node, layer.array_shape()[2:]):
            raise Refusal(f"{describe(layer.node)} pads with zeros, to which the shift would have to be added")
        response = layer.response(shift)
        bias = response if bias is None else bias + response
    check_finite(weight, *([bias] if bias is not None else []), dtype=dtype)
    if bias is not None and layer.node.op_type == "MatMul":
        graph = node.graph
        if graph is None:
            raise Refusal("the layer belongs to no graph")
        # The MatMul makes a new tensor, the Add after it the one that all know.
        out = layer.node.outputs[0]
        add = ir.Node("", "Add", [], name=namer.node(f"{layer.node.name}_bias"), num_outputs=1)
        add.outputs[0].name = namer.fresh(f"{out.name}_biased")
        name = namer.fresh(f"{out.name}_product")
        constant = set_constant(graph, namer, f"{layer.node.name}_bias", bias.astype(dtype.numpy()))
        graph.insert_after(layer.node, add)
        rename_output(add.outputs[0], out)
        out.name = name
        add.resize_inputs(2)
        add.replace_input_with(0, out)
        add.replace_input_with(1, constant)
    replace_constant(layer.node, 1, weight, namer, f"{layer.node.name}_weight", dtype)
    if bias is not None and layer.node.op_type != "MatMul":
        replace_constant(layer.node, 2, bias, namer, f"{layer.node.name}_bias", dtype)
        if layer.node.op_type == "Gemm":
            layer.node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    replace_value(node.outputs[0], source)
    remove_nodes([node])
