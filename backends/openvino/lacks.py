"""What OpenVINO refuses a model for, float or quantized."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.values import input_of
from onnxq.options import Options

__all__ = ["lacks"]


def lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Nodes behind which it may not be known how many axes there are: OpenVINO 2026.4 compiles no such model."""
    return warn_of_nodes(model, _said)


def _said(node: ir.Node) -> tuple[str, str] | None:
    """A Squeeze of all axes of size 1, of which some have no size yet."""
    if node.op_type != "Squeeze" or node.domain != "" or "axes" in node.attributes:
        return None
    data, axes = node.inputs[0], input_of(node, 1)
    if axes is not None or data is None or data.shape is None or data.shape.is_static():
        return None
    what = (
        "it names no axes and reads a tensor of free sizes: unless OpenVINO works these out, as from a state of fixed "
        "batch, it does not know how many axes are left, and its CPU refuses the model, float or quantized"
    )
    return what, "Name its axes in the model, or fix the sizes of the model's inputs (--shape)"
