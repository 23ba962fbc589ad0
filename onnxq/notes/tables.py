"""Which stored tables are unpacked as a whole when a model loads; the others are row by row, as they are read."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import reads_as_much

__all__ = ["unpacked_whole"]


def unpacked_whole(model: ir.Model, stored: Mapping[str, str]) -> set[str]:
    """Names of the Gathers that pick as many numbers of a stored table as it has.

    Args:
        model: the float model.
        stored: node → operator of what computes in float with weights stored as integers.
    """
    gathers = (node for node in all_nodes(model) if node.name and stored.get(node.name) == "Gather")
    return {node.name or "" for node in gathers if (table := node.inputs[0]) and reads_as_much(node.outputs[0], table)}
