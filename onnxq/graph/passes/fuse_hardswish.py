"""HardSwish written as a chain of operators becomes the operator: one kernel, which runtimes fuse into convolutions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, stand_for
from onnxq.graph.note import Note
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.recognition.region import compute

__all__ = ["fuse_hardswish"]

_OPSET = 14
_TOLERANCE = 1e-5


def fuse_hardswish(model: ir.Model) -> list[Note]:
    """Replace ``x * clip(x + 3, 0, 6) / 6`` in all its orders by HardSwish, where the opset (14) has it.

    Args:
        model: changed in place.

    Returns:
        One note with the number of chains replaced, if any.
    """
    if model.opset_imports.get("", 0) < _OPSET:
        return []
    x = np.linspace(-8.0, 8.0, 65)
    wanted = x * np.clip(x + 3, 0, 6) / 6
    done = 0
    for group in reversed(find_groups(model)):
        start, end = group.inputs[0], group.outputs[0]
        if group.kind != "hardswish" or start.dtype is not ir.DataType.FLOAT:
            continue
        values = compute(list(group.nodes), {start: x})
        result = values.get(end) if values is not None else None
        if result is None or result.shape != x.shape or float(np.abs(result - wanted).max()) > _TOLERANCE:
            continue
        last = group.nodes[-1]
        node = ir.node("HardSwish", [start], name=last.name)
        stand_for(node, group.nodes)
        replace_nodes(group.nodes, node)
        done += 1
    return [Note("fuse_hardswish", "", f"{done} chains replaced by HardSwish")] if done else []
