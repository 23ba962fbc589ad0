"""Tensors inside a model made outputs of it."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

__all__ = ["show"]


def show(model: ir.Model, names: Collection[str]) -> list[ir.Value]:
    """Make tensors of the main graph outputs as well, in the order in which they are computed.

    Args:
        model: changed in place.
        names: of the tensors; those that are outputs already, and those that there are none of, are left out.

    Returns:
        The new outputs.
    """
    wanted = set(names) - {value.name for value in model.graph.outputs}
    found = [value for node in model.graph for value in node.outputs if value.name in wanted]
    model.graph.outputs.extend(found)
    return found
