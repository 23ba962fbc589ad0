"""Where onnxruntime 1.31's integer kernels fail or are wrong, and what is done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.picking import sized_by_numbers
from onnxq.graph.traverse import all_nodes, subgraphs
from onnxq.graph.values import only_reader, rank_of, size_along
from onnxq.numbers import fit_biases
from onnxq.rows import plain_average_pool

if TYPE_CHECKING:
    from onnxq.plan import Plan, Site
    from onnxq.qparams import QParams

__all__ = [
    "MOVES",
    "adjust",
    "certain",
    "function_behind",
    "is_quantized_behind",
    "keep_float",
    "keep_from_empty",
    "keep_layers",
    "keep_layout",
    "keep_pools",
    "several",
]

MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""What onnxruntime moves a DequantizeLinear through, and a QuantizeLinear the other way."""

_MEANS = ("AveragePool", "GlobalAveragePool")
_SOFTMAX_STEPS = 148.0
"""Steps to 1.0 of a Softmax, for each element of a row: measured, wrong from 148.5 on for rows of 1 to 300 elements."""
_POOL_RATIO = 250.0
"""Step of a mean's input over that of the mean, divided by the elements it is of: from 256 on the kernel refuses."""
_PASSED = frozenset(
    {"Clip", "Flatten", "Identity", "MaxPool", "Relu", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that onnxruntime moves the QuantizeLinear behind them in front of, or leaves out."""


def several(node: ir.Node) -> str | None:
    """A Softmax of more than one element to a row: of one, onnxruntime 1.31's QLinearSoftmax gives 0 in place of 1."""
    size = _row(node)
    if size is not None and size > 1:
        return None
    wrong = "onnxruntime's integer kernel is wrong for rows of one element"
    return wrong if size == 1 else f"{wrong}, which its free sizes allow (--shape fixes them)"


def _row(node: ir.Node) -> int | None:
    """Elements of a Softmax's row, ``None`` where the model does not tell."""
    return size_along(node.inputs[0], node.attributes.get_int("axis", -1))


def certain(model: ir.Model) -> None:
    """Write a Softmax over rows of one element as a Hardmax, which gives 1 just as well.

    onnxruntime 1.31 fuses a Softmax between quantizers into a QLinearSoftmax, which gives 0 there.
    """
    for node in all_nodes(model):
        data = node.inputs[0] if node.op_type == "Softmax" and node.domain == "" else None
        if data is None or data.dtype is not ir.DataType.FLOAT:
            continue  # no Hardmax of other types, and no QLinearSoftmax either
        shape, axis = data.shape, node.attributes.get_int("axis", -1)
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1:
            node.op_type = "Hardmax"


def keep_pools(model: ir.Model, plan: Plan) -> None:
    """Put a Sum of one term, which onnxruntime leaves in place, behind an AveragePool that is to stay float.

    onnxruntime 1.31 makes a QLinearAveragePool of any that stands between quantizers, planned so or not. That kernel
    takes several times as long as the float one with its conversions, and divides by other counts in some forms, see
    :func:`onnxq.rows.plain_average_pool`. It moves a QuantizeLinear in front of a Reshape, so that one would not keep
    them apart.
    """
    pools = [node for node in all_nodes(model) if node.op_type == "AveragePool" and not node.domain]
    left = [n for n in pools if n.name not in plan.quantized or plain_average_pool(n) is not None]
    keep_float(model, [node for node in left if _is_dequantized(node.inputs[0])])


def keep_layers(model: ir.Model, plan: Plan) -> None:
    """Put a Sum of one term behind a layer that is to stay float between quantizers, or behind its activation function.

    onnxruntime 1.32 rounds the constant weights of a Conv, ConvTranspose or Gemm that stands between a DequantizeLinear
    and a QuantizeLinear, a Relu counted in, to 8 bits with one scale for all, and computes it in integers where it can;
    so, too, with data movement between, through which it moves both. A ConvTranspose that is planned to be quantized,
    but was not written as a Conv, is one of these.
    """
    names = ("Conv", "ConvTranspose", "Gemm")
    layers = [n for n in all_nodes(model) if n.op_type in names and not n.domain]
    layers = [n for n in layers if n.op_type == "ConvTranspose" or n.name not in plan.quantized]
    float_ones = [node for node in layers if _is_dequantized_before(node.inputs[0])]
    keep_float(model, [function_behind(node) or node for node in float_ones], is_quantized_behind)


def function_behind(layer: ir.Node) -> ir.Node | None:
    """A Relu or Clip that alone reads what a layer gives."""
    reader = only_reader(layer.outputs[0])
    return reader if reader is not None and reader.op_type in ("Relu", "Clip") else None


def _is_dequantized_before(value: ir.Value | None) -> bool:
    """Whether a DequantizeLinear makes a tensor, or what data movement makes it of."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type in MOVES:
        value = maker.inputs[0]
    return _is_dequantized(value)


def is_quantized_behind(reader: ir.Node) -> bool:
    """Whether a reader is a QuantizeLinear, or data movement with nothing but one, or a function and one, behind it."""
    moved = False
    while reader.op_type in MOVES or (moved and reader.op_type in ("Relu", "Clip")):
        behind, moved = only_reader(reader.outputs[0]), True
        if behind is None:
            return False
        reader = behind
    return reader.op_type == "QuantizeLinear"


def keep_float(
    model: ir.Model,
    nodes: Iterable[ir.Node],
    leads: Callable[[ir.Node], bool] = lambda node: node.op_type == "QuantizeLinear",
) -> None:
    """Put a Sum of one term between nodes and the quantizers behind them, or what else of their readers ``leads``."""
    namer: Namer | None = None
    for node in nodes:
        y = node.outputs[0]
        readers = [use for use in y.uses() if leads(use.node)]
        if not readers or not isinstance(node.graph, ir.Graph):
            continue
        namer = namer or Namer(model)
        alone = _like(y, ir.node("Sum", [y], name=namer.node(f"{y.name}_Sum")), namer.fresh(f"{y.name}_alone"))
        node.graph.insert_after(node, [alone])
        for reader, index in readers:
            reader.replace_input_with(index, alone.outputs[0])


def keep_from_empty(model: ir.Model) -> None:
    """Put a Sum of one term, which onnxruntime leaves in place, behind an Add or Mul whose result may be empty.

    onnxruntime 1.32 ends the process in its QLinearAdd and QLinearMul where there is nothing to add up, of shapes (0,)
    and (1,) say, on two threads or more: where a NonMaxSuppression before them finds nothing.
    """
    empty = sized_by_numbers(model)
    sums = [node for node in all_nodes(model) if node in empty and node.op_type in ("Add", "Mul") and not node.domain]
    keep_float(model, [node for node in sums if any(map(_is_dequantized, node.inputs))])


def keep_layout(model: ir.Model) -> None:
    """Put a Reshape to the same shape around a cubic Resize of images where convolutions are quantized.

    onnxruntime 1.31 computes these with the channels last, moves the transpositions around them through what stands
    beside, and has no cubic Resize of that layout: the session is not created. Through a Reshape it moves none.
    """
    nodes = list(all_nodes(model))
    if not any(n.op_type == "Conv" and any(map(_is_dequantized, n.inputs[:1])) for n in nodes):
        return
    namer = Namer(model)
    for node in nodes:
        mode = node.attributes.get_string("mode", "nearest") if node.op_type == "Resize" and node.domain == "" else None
        x, y = node.inputs[0] if mode == "cubic" else None, node.outputs[0]
        if x is None or rank_of(x) != 4 or not isinstance(node.graph, ir.Graph):
            continue
        same = set_constant(node.graph, namer, f"{x.name}_same_shape", np.zeros(4, np.int64))
        if readers := list(y.uses()):
            behind = _reshape(y, same, namer)
            node.graph.insert_after(node, [behind])
            for reader, index in readers:
                reader.replace_input_with(index, behind.outputs[0])
        before = _reshape(x, same, namer)
        node.graph.insert_before(node, [before])
        node.replace_input_with(0, before.outputs[0])


def _reshape(x: ir.Value, shape: ir.Value, namer: Namer) -> ir.Node:
    node = ir.node("Reshape", [x, shape], name=namer.node(f"{x.name}_Reshape"))
    return _like(x, node, namer.fresh(f"{x.name}_reshaped"))


def _like(x: ir.Value, node: ir.Node, name: str) -> ir.Node:
    """A node whose output, of a name, is of the type and shape of a tensor."""
    made = node.outputs[0]
    made.name, made.type = name, x.type
    made.shape = x.shape.copy() if x.shape is not None else None
    return node


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"


def adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Raise the scales that onnxruntime 1.31's kernels cannot compute with, in place, and those of biases with them.

    * QLinearGlobalAveragePool, and QLinearAveragePool over all positions, fail where the step of the mean is far finer
      than that of what it is the mean of;
    * QLinearSoftmax gives 0 in place of large results where its step is finer than 1/148 divided by the row's length.
      It also takes the place of a float Softmax that stands between quantizers, with a Relu or Reshape in between too.
    """
    sites = {site.tensor: site for site in plan.sites if site.role == "activation"}
    ends = _ends(model)
    changed = False
    for node in all_nodes(model):
        if node.op_type not in (*_MEANS, "Softmax") or node.domain != "" or node.inputs[0] is None:
            continue
        before = sites.get(node.inputs[0].name or "")
        if before is None:
            continue
        least = float(numbers[before.name].scale.max()) / _POOL_RATIO
        if node.op_type == "Softmax":
            least = 1 / (_SOFTMAX_STEPS * (_row(node) or 1))
        value: ir.Value | None = node.outputs[0]
        while value is not None:
            behind = sites.get(value.name or "")
            changed = (behind is not None and _raise(plan, numbers, behind, least)) or changed
            value = ends.get(value) or (_passed(value) if behind is None else None)
    if changed:
        fit_biases(model, plan, numbers)
    return []


def _passed(value: ir.Value) -> ir.Value | None:
    """What the only reader of a tensor makes of it, where a quantizer behind that reader comes in front of it."""
    readers = [node for node, _ in value.uses()]
    alone = len(readers) == 1 and not value.is_graph_output() and readers[0].domain == ""
    return readers[0].outputs[0] if alone and readers[0].op_type in _PASSED else None


def _raise(plan: Plan, numbers: MutableMapping[str, QParams], site: Site, least: float) -> bool:
    """Raise the scale of a site of 8 bits, and of those that share it, to a least one; whether that was needed."""
    here = numbers[site.name]
    if here.spec.bits != 8 or float(here.scale.min()) >= least:
        return False
    root = plan.root(site)
    for other in plan.sites:
        if plan.root(other) is root:
            old = numbers[other.name]
            numbers[other.name] = replace(old, scale=np.maximum(old.scale, old.scale.dtype.type(least)))
    return True


def _ends(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """The last tensor of a branch → what an If gives; onnxruntime takes an If out whose condition is constant."""
    return {
        inner: outer
        for node in all_nodes(model)
        if node.op_type == "If"
        for branch in subgraphs(node)
        for inner, outer in zip(branch.outputs, node.outputs, strict=True)
    }
