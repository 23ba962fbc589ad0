"""Runs of nodes of a graph: what goes in and out of them, where two graphs differ, and a piece as a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import subgraphs, with_subgraphs
from onnxq.graph.values import array_of, is_constant

__all__ = ["difference", "piece", "reads"]


def reads(node: ir.Node) -> list[ir.Value]:
    """Values of the graph of a node that it or its bodies read, each once, in order."""
    found = dict.fromkeys(value for value in node.inputs if value is not None)
    for body in subgraphs(node):
        graphs = list(with_subgraphs(body))
        own = {v for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
        own |= {v for graph in graphs for inner in graph for v in inner.outputs}
        for graph in graphs:
            for value in (*(v for inner in graph for v in inner.inputs if v is not None), *graph.outputs):
                if value not in own:
                    found[value] = None
    return list(found)


def piece(model: ir.Model, nodes: Sequence[ir.Node], fed: Mapping[str, ir.Value], wanted: Collection[str]) -> ir.Model:
    """A model of some nodes, to be run and not to be changed: it shares them with the model given.

    Args:
        model: left as it is.
        nodes: a run of nodes of its main graph.
        fed: what may be fed, by name.
        wanted: names of the tensors that may be outputs.
    """
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in reads(node) if value not in made)
    constants = [value for value in read if value.is_initializer()]
    inputs = [fed[value.name or ""] for value in read if not value.is_initializer()]
    outputs = [value for node in nodes for value in node.outputs if value.name in wanted]
    view = ir.GraphView(
        inputs, outputs, nodes=nodes, initializers=constants, opset_imports=dict(model.opset_imports), name="piece"
    )
    return ir.Model(view, ir_version=model.ir_version, functions=tuple(model.functions.values()))  # type: ignore[arg-type]


def difference(one: Sequence[ir.Node], other: Sequence[ir.Node]) -> tuple[int, int]:
    """Where two sequences of nodes differ: how many are equal from the start on, and how many of the rest at the end.

    Nodes are equal that compute the same from tensors of the same names; those with bodies never are.
    """
    most = min(len(one), len(other))
    start = 0
    while start < most and _equal(one[start], other[start]):
        start += 1
    end = 0
    while end < most - start and _equal(one[-1 - end], other[-1 - end]):
        end += 1
    return start, end


def _equal(one: ir.Node, other: ir.Node) -> bool:
    if one.op_type != other.op_type or one.domain != other.domain or len(one.inputs) != len(other.inputs):
        return False
    if [v.name for v in one.outputs] != [v.name for v in other.outputs]:
        return False
    pairs = zip(one.inputs, other.inputs, strict=True)
    return all(_same(a, b) for a, b in pairs) and _alike(one.attributes.data, other.attributes.data)


def _same(one: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether two values have one name, and the same numbers where they are constant."""
    if one is None or other is None:
        return one is other
    if one.name != other.name:
        return False
    a, b = one.const_value, other.const_value
    if a is None and b is None:
        return True
    if is_constant(one) != is_constant(other):
        return False
    if a is b or a is None or b is None or not is_constant(one):
        return True
    return a.dtype == b.dtype and np.array_equal(array_of(a), array_of(b))


def _alike(one: Mapping[str, ir.Attr], other: Mapping[str, ir.Attr]) -> bool:
    if one.keys() != other.keys():
        return False
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    for name, a in one.items():
        b = other[name]
        if a.type != b.type or a.type in bodies or a.is_ref() or b.is_ref():
            return False
        if a is not b and a.value is not b.value and bool(a.value != b.value):
            return False
    return True
