"""What PyTorch's exporter notes on nodes and tensors: stack traces, classes, graph nodes. No use in a result.

These are up to a third of a quantized file, hold paths of whoever exported it, and speak of a program that the graph,
once passes have changed it, is no longer. What is noted on the model itself stays, and so do the keys of other tools.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import with_subgraphs

__all__ = ["drop_exporter_notes"]

_PREFIXES = ("pkg.onnxscript.", "pkg.torch.")
_BESIDE = "namespace"
"""Key of the same exporter, but for its name: it is one of its own only beside others."""


def drop_exporter_notes(model: ir.Model) -> list[Note]:
    """Drop the exporter's notes from graphs, nodes and tensors, those of functions included.

    Args:
        model: changed in place; its own metadata stays.

    Returns:
        A note of how much it was, if anything.
    """
    dropped = 0
    for notes in _all_notes(model):
        keys = [key for key in notes if key.startswith(_PREFIXES)]
        if keys and _BESIDE in notes:
            keys.append(_BESIDE)
        dropped += sum(len(key.encode()) + len(notes.pop(key).encode()) for key in keys)
    return (
        [Note("exporter_notes", "", f"{dropped:,} bytes of the exporter's notes on nodes dropped")] if dropped else []
    )


def _all_notes(model: ir.Model) -> Iterator[MutableMapping[str, str]]:
    for function in model.functions.values():
        yield function.metadata_props
    for body in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in with_subgraphs(body):
            yield graph.metadata_props
            for value in (*graph.inputs, *graph.initializers.values()):
                yield value.metadata_props
            for node in graph:
                yield node.metadata_props
                yield from (value.metadata_props for value in node.outputs)
