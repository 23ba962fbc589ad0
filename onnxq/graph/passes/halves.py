"""Float constants that half precision holds exactly: stored in it, and widened by a Cast when the model is loaded.

The weights of a model that came in float16 or bfloat16 are such as long as nothing changed them. The numbers stay, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Container
from copy import copy
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import remove_nodes, replace_value, set_constant
from onnxq.graph.known import once
from onnxq.graph.namer import Namer
from onnxq.graph.passes.upcast import HALVES
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import array_of, constant_array, is_constant
from onnxq.graph.widened import Widened

__all__ = ["store_in_half", "widen_halves"]

_LEAST = 1024
"""Elements from which a constant is worth a Cast."""
_GLANCE = 4096
"""Elements that show of most constants that half precision does not hold them."""
_BFLOAT16_OPSET = 13
"""From here on a Cast takes bfloat16."""
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "MatMulNBits", "GatherBlockQuantized", "QMoE"})
"""They are taken for what they are only where their parameters are constants."""


def store_in_half(model: ir.Model, among: Container[str] | None = None) -> None:
    """Store float32 constants of the main graph in half precision where that loses nothing.

    Args:
        model: changed in place; the Casts have the constants' names.
        among: names of those that may be; all if None.
    """
    namer, graph, opset = Namer(model), model.graph, model.opset_imports.get("", 0)
    casts: list[ir.Node] = []
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.size < _LEAST or not is_constant(value):
            continue
        if among is not None and name not in among:
            continue
        if value.is_graph_output() or any(use.node.op_type in _QUANTIZERS for use in value.uses()):
            continue
        stored = _stored(value, graph, namer.fresh(f"{name}_half"), bfloat16=opset >= _BFLOAT16_OPSET)
        if stored is None:
            continue
        cast = ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)}, name=namer.node(f"{name}_Cast"))
        wide = cast.outputs[0]
        wide.type, wide.shape = value.type, value.shape
        replace_value(value, wide)
        graph.initializers.pop(name)
        wide.name = name
        casts.append(cast)
    if casts:
        graph.insert_before(graph[0], casts)


def widen_halves(model: ir.Model) -> None:
    """Compute the Casts of half-precision constants to float32, which then are what they were before.

    Args:
        model: changed in place.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        stored, graph = node.inputs[0] if node.op_type == "Cast" and node.domain == "" else None, node.graph
        half = constant_array(stored)
        if stored is None or half is None or stored.dtype not in HALVES or not isinstance(graph, ir.Graph):
            continue
        wide = node.outputs[0]
        if node.attributes.get_int("to", 0) != ir.DataType.FLOAT or wide.is_graph_output():
            continue
        name = wide.name or ""
        wide.name = None
        made = set_constant(graph, namer, f"{name}_wide", half.astype(np.float32))
        replace_value(wide, made)
        remove_nodes([node])
        made.name = name
        if not stored.uses() and not stored.is_graph_output() and isinstance(stored.graph, ir.Graph):
            stored.graph.initializers.pop(stored.name or "")


def _stored(value: ir.Value, graph: ir.Graph, name: str, *, bfloat16: bool) -> ir.Value | None:
    """A constant in half precision of the same numbers, None where there is none; one in a data file stays there."""
    tensor = value.const_value
    assert tensor is not None
    if isinstance(tensor, Widened):
        held: ir.TensorProtocol = copy(tensor.source)
    elif once(value, ("no half", bfloat16), lambda: _exact(array_of(tensor), bfloat16=bfloat16) is None):
        return None
    else:
        half = _exact(array_of(tensor), bfloat16=bfloat16)
        if half is None:
            return None
        held = ir.Tensor(half)
    held.name = name
    shape = ir.Shape(held.shape.numpy())
    made = ir.Value(name=name, shape=shape, type=ir.TensorType(held.dtype), const_value=held)
    graph.register_initializer(made)
    return made


def _exact(array: NDArray[Any], *, bfloat16: bool) -> NDArray[Any] | None:
    """The numbers in half precision, where every one of them has the bits that it had when it comes back."""
    flat = np.ascontiguousarray(array).reshape(-1)
    for kind in (np.float16, ml_dtypes.bfloat16) if bfloat16 else (np.float16,):
        half = flat[:0]
        for part in (flat[:_GLANCE], flat):
            with np.errstate(over="ignore", invalid="ignore"):
                half = part.astype(kind)
                if not np.array_equal(half.astype(np.float32).view(np.uint32), part.view(np.uint32)):
                    break
        else:
            return half.reshape(array.shape)
    return None
