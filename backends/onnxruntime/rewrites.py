"""Last rewritings of a QDQ model for onnxruntime: what makes it fast, and what keeps it from failing there.

Integers stay as they are, and floats but for roundings (:mod:`.fast_floats`). Each says what onnxruntime 1.31 does
otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.channels import fill_up_channels
from onnxq.backends.onnxruntime.fast_floats import write_fast
from onnxq.backends.onnxruntime.groups import join_groups
from onnxq.backends.onnxruntime.limits import (
    MOVES,
    certain,
    is_quantized_behind,
    keep_float,
    keep_from_empty,
    keep_layers,
    keep_layout,
    keep_pools,
)
from onnxq.backends.onnxruntime.phases import write_phases
from onnxq.backends.onnxruntime.processors import VNNI, Products
from onnxq.backends.onnxruntime.resizes import write_resizes
from onnxq.backends.onnxruntime.shuffles import write_shuffles
from onnxq.backends.onnxruntime.weights import (
    has_float_data,
    unpack_at_load,
    unpack_late,
    widen_at_load,
)
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.halves import store_in_half
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant, is_stored, rank_of

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["finish", "recast"]


def _keep_apart(model: ir.Model) -> None:
    """Give the bias added to a quantized MatMul the rank of the sum.

    Adding a vector behind a MatMul of static shape is fused into a float Gemm before onnxruntime looks at Q and DQ,
    and the weights are then dequantized at every run. A bias of shape (1, 1, N) is left alone: MatMulIntegerToFloat,
    then Add. Where weights are unpacked at load, the float Gemm is what is wanted.
    """
    namer = Namer(model)
    for node in all_nodes(model):
        if node.op_type != "Add":
            continue
        for position in (0, 1):
            bias, array = node.inputs[position], _bias_of_a_product(node, position)
            if bias is None or array is None or not isinstance(node.graph, ir.Graph):
                continue
            if len(bias.uses()) == 1 and isinstance(bias.graph, ir.Graph):
                bias.const_value = ir.tensor(array, name=bias.name)
                bias.shape = ir.Shape(array.shape)
            else:
                home = bias.graph if isinstance(bias.graph, ir.Graph) else node.graph
                node.replace_input_with(position, set_constant(home, namer, f"{bias.name}_row", array))


def _bias_of_a_product(add: ir.Node, position: int) -> np.ndarray | None:
    """A constant vector that an Add adds to a quantized MatMul of three dimensions or more, with as many; else None."""
    bias, product = add.inputs[position], add.inputs[1 - position]
    matmul = product.producer() if product is not None else None
    if bias is None or product is None or matmul is None or matmul.op_type != "MatMul":
        return None
    if not is_constant(bias) or bias.is_graph_output() or rank_of(bias) != 1:
        return None
    if product.shape is None or len(product.shape) <= 2:
        return None
    unpack = matmul.inputs[1].producer() if matmul.inputs[1] is not None else None
    if unpack is None or unpack.op_type != "DequantizeLinear":
        return None
    array = constant_array(bias)
    return None if array is None else array.reshape((1,) * (len(product.shape) - 1) + (-1,))


def _write_signed_pairs(model: ir.Model) -> None:
    """Write quantizers of int8 activations in onnxruntime's own domain from opset 21 on.

    onnxruntime 1.31 moves such a pair past data movement with an ``output_dtype``, then makes it uint8 and finds that
    the two do not match: the session is not created. Its own operators know no ``output_dtype``.
    """
    if model.opset_imports.get("", 0) < 21:
        return
    for node in all_nodes(model):
        zero = input_of(node, 2)
        signed = zero is not None and zero.dtype is ir.DataType.INT8 and not is_stored(node.inputs[0])
        if signed and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = MICROSOFT
            model.opset_imports[MICROSOFT] = 1


def _keep_norms(model: ir.Model) -> None:
    """Write an Add that a layer normalization alone reads, all in float, as a Sum.

    onnxruntime 1.32 makes a SkipLayerNormalization of them, whose kernel takes 4 ns for each element: Sum .12, and
    LayerNormalization .39.
    """
    chains = [(g.inputs[0], frozenset(g.nodes)) for g in find_groups(model) if g.kind == "layernorm"]
    norms = (node for node in all_nodes(model) if node.op_type == "LayerNormalization" and node.domain == "")
    for data, nodes in (*chains, *((node.inputs[0], frozenset({node})) for node in norms)):
        add = data.producer() if data is not None and data.dtype is ir.DataType.FLOAT else None
        if data is None or add is None or add.op_type != "Add" or add.domain != "" or data.is_graph_output():
            continue
        if all(reader in nodes for reader in data.consumers()):
            add.op_type = "Sum"


def _keep_max_pools(model: ir.Model) -> None:
    """Put a Sum of one term behind a MaxPool of floats that is quantized, which onnxruntime 1.32 leaves in place.

    It moves the QuantizeLinear in front of the MaxPool otherwise, which then takes integers with the channels first: 10
    to 20 ns for each element that it gives, in place of .2 in float and .3 for the Sum.
    """
    pools = (node for node in all_nodes(model) if node.op_type == "MaxPool" and node.domain == "")
    keep_float(model, [node for node in pools if _dequantizer_before(node) is None], is_quantized_behind)


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


_VANISHING = MOVES | {"Cast", "Clip", "Concat", "Dropout", "Expand", "Flatten", "Identity", "Pad", "Relu"}
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
            needed = any(index == 1 and has_float_data(reader) for reader, index in dq.outputs[0].uses())
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


def _dequantizer_before(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear with one scale that data movement leads back to."""
    current: ir.Node | None = node
    while current is not None and current.op_type in MOVES and current.inputs[0] is not None:
        current = current.inputs[0].producer()
    if current is None or current is node or current.op_type != "DequantizeLinear":
        return None
    scale = constant_array(current.inputs[1])
    return current if scale is not None and scale.ndim == 0 else None


def recast(model: ir.Model, plan: Plan, products: Products = VNNI) -> None:
    """The rewritings into other forms of integer kernels, in place.

    Args:
        model: a rendered QDQ model.
        plan: where it is quantized.
        products: what kernels take on the processor that is meant.
    """
    write_phases(model, plan)
    fill_up_channels(model)
    write_shuffles(model, plan)
    write_resizes(model, plan)
    join_groups(model, plan, products)


def finish(model: ir.Model, plan: Plan) -> None:
    """All others, in place.

    Args:
        model: a rendered QDQ model.
        plan: where it is quantized.
    """
    certain(model)
    write_fast(model)
    unpack_at_load(model, plan)
    _keep_apart(model)
    widen_at_load(model)
    unpack_late(model)
    keep_layout(model)
    keep_pools(model, plan)
    keep_layers(model, plan)
    _keep_norms(model)
    _keep_max_pools(model)
    keep_from_empty(model)
    _shield_bodies(model)
    _hoist_dequantizers(model)
    _write_signed_pairs(model)
    store_in_half(model)
