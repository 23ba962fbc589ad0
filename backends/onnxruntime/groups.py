"""Groups of channels of integer convolutions, several in one where that is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.convolutions import UNKNOWN, elements_of, groups_together
from onnxq.backends.onnxruntime.kernels import quantizer_behind
from onnxq.backends.onnxruntime.processors import Products
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array, input_of, only_reader

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["join_groups"]


def join_groups(model: ir.Model, plan: Plan, products: Products) -> None:
    """Compute several groups of an integer convolution as one, with weights of zero for the channels of the others.

    Sums of integers, and so all numbers, stay the same; see :func:`.convolutions.groups_together`.

    Args:
        model: a rendered QDQ model, changed in place.
        plan: where it is quantized.
        products: what kernels take on the processor that is meant.
    """
    for node in all_nodes(model):
        group = node.attributes.get_int("group", 1) if node.op_type == "Conv" and node.domain == "" else 1
        unpack = _unpacked(node) if group > 1 and node.name in plan.quantized else None
        if unpack is None:
            continue
        made = node.outputs[0].shape
        elements = elements_of(made or (UNKNOWN,))
        count = groups_together(node, max(elements, 1), products)
        if count > 1:
            _join(node, unpack, count, group // count)


def _unpacked(conv: ir.Node) -> ir.Node | None:
    """The DequantizeLinear of the weights, which nothing else reads, of a convolution that becomes an integer one."""
    unpack = conv.inputs[1].producer() if conv.inputs[1] is not None and quantizer_behind(conv) is not None else None
    stored = unpack.inputs[0] if unpack is not None else None
    if unpack is None or stored is None or constant_array(stored) is None:
        return None
    alone = len(stored.uses()) == 1 and only_reader(unpack.outputs[0]) is conv and not stored.is_graph_output()
    return unpack if alone else None


def _join(conv: ir.Node, unpack: ir.Node, count: int, groups: int) -> None:
    """Write the weights, (M, C / group, ...), of ``count`` groups each as one, with zeros where they cross."""
    stored = unpack.inputs[0]
    zero = constant_array(input_of(unpack, 2))
    array = constant_array(stored)
    assert stored is not None and array is not None
    wide = _wide(array, zero, count, groups)
    stored.const_value = ir.tensor(wide, name=stored.name)
    stored.shape = ir.Shape(wide.shape)
    unpack.outputs[0].shape = ir.Shape(wide.shape)
    conv.attributes["group"] = ir.AttrInt64("group", groups)


def _wide(array: AnyArray, zero: AnyArray | None, count: int, groups: int) -> AnyArray:
    outputs, inputs, *taps = array.shape
    each = outputs // (count * groups)
    wide = np.zeros((outputs, count, inputs, *taps), array.dtype)
    if zero is not None:
        wide[...] = zero.reshape(-1, *(1,) * (wide.ndim - 1))
    place = np.arange(outputs) // each % count
    wide[np.arange(outputs), place] = array
    return wide.reshape(outputs, count * inputs, *taps)
