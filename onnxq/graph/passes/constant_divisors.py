"""Divisions by several constants, as products with their reciprocals: a factor may be rounded to 0, a divisor not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array

__all__ = ["constant_divisors"]


def constant_divisors(model: ir.Model) -> list[Note]:
    """Replace Div by Mul where the divisor is a constant of several float32 numbers, as in position embeddings.

    Whoever computes with fewer digits rounds small ones of divisors from 1 to 10000 to 0, and divides by that. Of the
    reciprocals it is those that made small numbers of what they are multiplied by. A single divisor stays.

    Args:
        model: changed in place; nodes and tensors keep their names. The numbers differ by float32 rounding.

    Returns:
        One note with the number of nodes, if any.
    """
    namer = Namer(model)
    count = 0
    for node in list(all_nodes(model)):
        data, graph = node.inputs[0] if node.inputs else None, node.graph
        factors = _factors(node)
        if factors is None or data is None or not isinstance(graph, ir.Graph):
            continue
        divisor = node.inputs[1]
        assert divisor is not None
        product = ir.node("Mul", [data, set_constant(graph, namer, f"{divisor.name}_inverse", factors)], name=node.name)
        stand_for(product, [node])
        replace_nodes([node], product)
        count += 1
    return [Note("constant_divisors", "", f"{count} divisions by constants are products")] if count else []


def _factors(node: ir.Node) -> AnyArray | None:
    """The reciprocals of a node's constant divisors, where each is a normal float32 number; None for all others."""
    if node.op_type != "Div" or node.domain != "" or len(node.inputs) != 2:
        return None
    divisors = constant_array(node.inputs[1])
    if divisors is None or divisors.dtype != np.float32 or divisors.size < 2:
        return None
    with np.errstate(all="ignore"):
        factors = (1.0 / divisors.astype(np.float64)).astype(np.float32)
    sound = np.isfinite(factors) & (np.abs(factors) >= np.finfo(np.float32).tiny)
    return factors if sound.all() else None
