"""Whether something that works on a model in place has changed it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.graph.traverse import all_graphs

__all__ = ["Parts"]


class Parts:
    """The objects that a model consists of at one time.

    Args:
        model: of any size; constants are not looked into.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._parts = list(_parts(model))

    @property
    def are_the_same(self) -> bool:
        """Whether the model still consists of them, each in its place. A part that an equal one replaced is changed."""
        now = list(_parts(self._model))
        return len(now) == len(self._parts) and all(map(lambda one, other: one is other, now, self._parts))


def _parts(model: ir.Model) -> Iterator[object]:
    for domain, version in model.opset_imports.items():
        yield from (domain, version)
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values()):
            yield from _of_value(value)
        for node in graph:
            yield from (node, node.domain, node.op_type, node.name, *node.inputs, *node.attributes.values())
            for key, note in node.meta.items():
                yield from (key, note)
            for value in node.outputs:
                yield from _of_value(value)
        yield from graph.outputs


def _of_value(value: ir.Value) -> Iterator[object]:
    yield from (value, value.name, value.shape, value.type, value.const_value)
