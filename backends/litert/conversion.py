"""A model of ONNX as one of TensorFlow Lite."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.codes import grid_of
from onnxq.backends.litert.flat import FlatModel
from onnxq.backends.litert.fused import fused
from onnxq.backends.litert.in_place import kept_apart
from onnxq.backends.litert.operators import OPERATORS
from onnxq.backends.litert.placed import Placed, RefusedError, plain
from onnxq.backends.litert.quantizers import dequantize, quantize
from onnxq.backends.litert.translation import RANGED_AT_RUN, Translation
from onnxq.checks.free_sizes import how_to_fix
from onnxq.graph.passes.constants import fold_constants
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import describe, full_type

__all__ = ["Refused", "convert"]


class Refused(NamedTuple):
    """What cannot be said.

    Attributes:
        where: an input, a node or an output.
        why: in words.
        hint: what to do.
    """

    where: str
    why: str
    hint: str = "Cut the model there, or use the format qdq"


def convert(model: ir.Model, integers: Collection[str] = (), *, codes: bool = False) -> tuple[FlatModel, list[Refused]]:
    """Translate a model.

    Args:
        model: float, or with QuantizeLinear and DequantizeLinear around nodes; left unchanged. A first axis of free
            size of its inputs is taken for the batch, and is 1.
        integers: names of the nodes that compute in integers.
        codes: inputs and outputs that are quantized are the int8 themselves, as microcontrollers have them, for which
            all is said with few operators.

    Returns:
        The translation, and what is missing in it; it is of use where nothing is.
    """
    model = model.clone()
    refused = _with_sizes(model)
    if refused:
        return FlatModel(), refused + _unknown_whatever_the_sizes(model)
    t = Translation(model, integers, small=codes)
    for value in model.graph.inputs:
        why = _why_not(partial(_input, t, value, codes=codes))
        refused += [Refused(f"input {value.name!r}", why)] if why is not None else []
    for node in model.graph:
        why = _why_not(partial(_node, t, node))
        missing = any(_is_missing(t, value) for value in node.inputs)  # then the reason lies before it
        refused += [Refused(describe(node), why)] if why is not None and not missing else []
    for value in model.graph.outputs if not refused else ():
        why = _why_not(partial(_output, t, value, codes=codes))
        refused += [Refused(f"output {value.name!r}", why)] if why is not None else []
    return (t.flat if refused else kept_apart(fused(t.flat).pruned()).pruned()), refused


def _unknown_whatever_the_sizes(model: ir.Model) -> list[Refused]:
    """Nodes that are not translated and do not become constants where the sizes of inputs are fixed."""
    found, computed = list[Refused](), set(model.graph.inputs)
    for node in model.graph:
        if node.op_type in ("Shape", "Size") or not computed.intersection(node.inputs):
            continue
        computed.update(node.outputs)
        if _is_unknown(node):
            found.append(Refused(describe(node), _unknown(node)))
    return found


def _why_not(translate: Callable[[], None]) -> str | None:
    """Why something is not translated; None where it is."""
    try:
        translate()
    except RefusedError as error:
        return str(error)
    return None


def _with_sizes(model: ir.Model) -> list[Refused]:
    """Fix the batch, and what follows from it; inputs with other free sizes."""
    free = []
    for value in model.graph.inputs:
        sizes = list(value.shape or ())
        if value.shape is None or any(not isinstance(size, int) for size in sizes[1:]):
            why = (
                f"its sizes {value.shape if value.shape is not None else ''} are free, and TensorFlow Lite's are fixed"
            )
            free.append(Refused(f"input {value.name!r}", " ".join(why.split()), f"Fix its sizes: {how_to_fix(value)}"))
        elif sizes and not isinstance(sizes[0], int):
            value.shape = ir.Shape([1, *sizes[1:]])
    if free:
        return free
    for value in model.graph.outputs:
        if value.producer() is not None:  # an input or a constant knows its own
            value.shape = None
    while True:
        infer_shapes(model)
        if not [note for note in fold_constants(model) if not note.node]:
            break
    remove_dead(model)
    return []


def _input(t: Translation, value: ir.Value, *, codes: bool) -> None:
    readers = [use.node for use in value.uses()]
    inside = codes and readers and all(node.op_type == "QuantizeLinear" for node in readers)
    made = t.new(value, plain(len(t.shape(value))), grid=grid_of(readers[0]) if inside else None)
    t.place(value, made)
    t.flat.inputs[value.name or ""] = made.index


def _node(t: Translation, node: ir.Node) -> None:
    if node.op_type == "QuantizeLinear":
        t.integer = False
        quantize(t, node)
    elif node.op_type == "DequantizeLinear":
        dequantize(t, node)
    elif full_type(node) == RANGED_AT_RUN:
        t.place(node.outputs[0], t.read(node.inputs[0]))
    else:
        if _is_unknown(node):
            raise RefusedError(_unknown(node))
        translate = OPERATORS[node.op_type]
        t.enter(node)
        try:
            translate(t, node)
        except RefusedError:
            if not t.integer:
                raise
            t.integer = False  # a form that it has for floats alone, between DEQUANTIZE and QUANTIZE
            translate(t, node)
            t.flat.in_float.append(node.name or "")


def _is_unknown(node: ir.Node) -> bool:
    known = node.op_type in OPERATORS or node.op_type in ("QuantizeLinear", "DequantizeLinear")
    return node.domain != "" or not known


def _unknown(node: ir.Node) -> str:
    return f"onnxq does not say {full_type(node)} in TensorFlow Lite"


def _is_missing(t: Translation, value: ir.Value | None) -> bool:
    """Whether a tensor that a node reads is there for want of its maker's translation only."""
    return value is not None and t.stored(value) is None and t.placed(value) is None


def _output(t: Translation, value: ir.Value, *, codes: bool) -> None:
    t.integer = False
    if 0 in t.shape(value):
        raise RefusedError("it has no elements")
    name, order = value.name or "", plain(len(t.shape(value)))
    is_code = codes or value.dtype is not ir.DataType.FLOAT
    made = t.read_codes(value, order) if is_code else t.read_in_order_first(value, order)
    if made.index in t.flat.outputs.values() or not t.flat.is_computed(made.index):
        made = _copied(t, made)
    t.flat.rename(made.index, name)
    t.flat.outputs[name] = made.index


def _copied(t: Translation, given: Placed) -> Placed:
    """The same numbers in a tensor of their own."""
    constant = t.flat.numbers(given.index)
    if constant is not None:
        index = t.flat.constant("", constant, given.grid, alone=True)
        return Placed(index, given.shape, given.order, given.dtype, given.grid)
    index = t.flat.tensor("copy", given.shape, given.dtype, given.grid)
    shape = t.flat.constant("shape", np.array(given.shape, np.int32))
    t.flat.operator("RESHAPE", [given.index, shape], [index], newShape=list(given.shape))
    return Placed(index, given.shape, given.order, given.dtype, given.grid)
