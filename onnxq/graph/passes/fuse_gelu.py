"""GELU written as a chain of operators becomes the operator Gelu: one kernel, and one quantizer behind it."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import replace_nodes, stand_for
from onnxq.graph.note import Note
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.graph.recognition.region import compute

__all__ = ["GELU_OPSET", "fuse_gelu", "gelu_chains", "has_gelu_chain"]

GELU_OPSET = 20
"""From here on Gelu is a standard operator."""
_TOLERANCE = 1e-5
"""Largest difference allowed on [-8, 8]; the two forms of Gelu differ by 5e-4."""


def fuse_gelu(model: ir.Model, behind: Collection[str] | None = None) -> list[Note]:
    """Replace the chain with Erf, and that with Tanh, by Gelu, where the opset (20) has it.

    ``x * sigmoid(1.702 x)`` is another function by up to 0.02, and stays.

    Args:
        model: changed in place; the tensors in front of and behind a chain keep their names.
        behind: operators; only chains that read the output of one of them are replaced.

    Returns:
        One note with the number of chains replaced, if any.
    """
    if model.opset_imports.get("", 0) < GELU_OPSET:
        return []
    found = gelu_chains(model, behind)
    for group, form in reversed(found):
        last = group.nodes[-1]
        node = ir.node("Gelu", [group.inputs[0]], {"approximate": form}, name=last.name)
        stand_for(node, group.nodes)
        replace_nodes(group.nodes, node)
    return [Note("fuse_gelu", "", f"{len(found)} chains replaced by Gelu")] if found else []


def has_gelu_chain(model: ir.Model, behind: Collection[str] | None) -> bool:
    """Whether :func:`fuse_gelu` would find something to replace, were the opset high enough."""
    return bool(gelu_chains(model, behind))


def gelu_chains(model: ir.Model, behind: Collection[str] | None = None) -> list[tuple[Group, str]]:
    """Chains that compute a GELU of float32, each with the form it has, as the operator's attribute names it."""
    x = np.linspace(-8.0, 8.0, 65)
    cube = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    forms = {
        "none": x / 2 * (1 + np.array([math.erf(v / math.sqrt(2)) for v in x])),
        "tanh": x / 2 * (1 + np.tanh(cube)),
    }
    chains = []
    for group in find_groups(model):
        start, end = group.inputs[0], group.outputs[0]
        if group.kind != "gelu" or start.dtype is not ir.DataType.FLOAT or not _same_rank(start, end):
            continue
        maker = start.producer()
        if behind is not None and (maker is None or maker.domain != "" or maker.op_type not in behind):
            continue
        values = compute(list(group.nodes), {start: x})
        result = values.get(end) if values is not None else None
        if result is None or result.size != x.size or not isinstance(group.nodes[-1].graph, ir.Graph):
            continue
        near = [form for form, wanted in forms.items() if np.abs(result.reshape(-1) - wanted).max() <= _TOLERANCE]
        chains += [(group, form) for form in near[:1]]
    return chains


def _same_rank(start: ir.Value, end: ir.Value) -> bool:
    """Whether a constant of shape (1, 1, ...) in the chain did not add axes."""
    return start.shape is not None and end.shape is not None and len(start.shape) == len(end.shape)
