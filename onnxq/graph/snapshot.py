"""Whether passes have changed a model, found without a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from onnxq.graph.traverse import all_graphs

__all__ = ["snapshot"]


def snapshot(model: ir.Model) -> list[Any]:
    """What passes set or replace: two snapshots of a model are equal where none of it was changed in between.

    Attributes, types and the arrays of constants are held and compared by identity first: what is written over inside
    of one is not seen. Nor are doc strings, properties of values and of graphs, and functions.
    """
    return [*model.opset_imports.items(), *model.metadata_props.items(), *model.meta.items(), *_parts(model)]


def _parts(model: ir.Model) -> Iterator[Any]:
    for graph in all_graphs(model):
        yield graph.name
        yield from graph.outputs
        for value in (*graph.inputs, *graph.initializers.values()):
            yield from _of_value(value)
        for node in graph:
            yield node
            yield from (node.name, node.domain, node.op_type, node.overload)
            yield from node.inputs
            yield from node.attributes.data.values()
            yield from (*node.meta.items(), *node.metadata_props.items())
            for value in node.outputs:
                yield from _of_value(value)


def _of_value(value: ir.Value) -> Iterator[Any]:
    yield value
    yield from (value.name, value.type, value.const_value)
    yield None if value.shape is None else tuple(value.shape)
    yield from value.meta.items()
