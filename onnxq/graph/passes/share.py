"""Equal constants are stored once: exporters and folding leave copies of weights, one in every branch of an If."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import replace_value
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import array_of, is_constant
from onnxq.graph.widened import Widened

__all__ = ["share_constants"]

_LEAST_BYTES = 1024
_COMPARED_FIRST = 256
"""Elements by which constants are told apart before they are compared as a whole."""


def share_constants(model: ir.Model) -> list[Note]:
    """Let readers of equal constants read one of them; copies in subgraphs move to the main graph.

    Only constants of 1 KB and more that are in memory are compared; external data is not read.

    Args:
        model: changed in place; tensor names are unique over it.

    Returns:
        One note with the number of copies removed, if any.
    """
    first: dict[tuple[object, ...], list[tuple[ir.Value, NDArray[Any]]]] = {}
    copies = 0
    for graph in all_graphs(model):
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if (
                tensor is None
                or isinstance(tensor, (ir.ExternalTensor, ir.StringTensor, Widened))
                or not is_constant(value)
                or value.is_graph_output()
                or tensor.nbytes < _LEAST_BYTES
            ):
                continue
            array = np.ascontiguousarray(array_of(tensor))
            start = array.reshape(-1)[:_COMPARED_FIRST].tobytes()
            alike = first.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), start), [])
            kept = next((other for other, held in alike if held.tobytes() == array.tobytes()), None)
            if kept is None:
                alike.append((value, array))
                continue
            if kept.graph is not model.graph and isinstance(kept.graph, ir.Graph):
                home = kept.graph
                del home.initializers[kept.name or ""]
                model.graph.register_initializer(kept)
            replace_value(value, kept)
            del graph.initializers[name]
            copies += 1
    return [Note("share", "", f"{copies} copies of equal constants removed")] if copies else []
