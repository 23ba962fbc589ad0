"""What a target cannot run of a float model: what its table says, and operators of onnxruntime's own."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.passes.fused_chains import FUSED
from onnxq.graph.traverse import full_type
from onnxq.options import Options

__all__ = ["lacks"]

_RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc")
_EXPORTED = "Give the model as it was exported, before onnxruntime's optimizer fused its operators"
_CUT = "Cut the model there, or export it without"


def lacks(model: ir.Model, target: Backend, options: Options) -> list[Finding]:
    """What of a float model the target cannot run.

    Args:
        model: in the form that the target wants.
        target: see ``Backend.lacks`` and ``Backend.runtime_operators``.
        options: how it is quantized.
    """

    def said(node: ir.Node) -> tuple[str, str] | None:
        if node.domain not in _RUNTIME_DOMAINS:
            return None
        return (
            f"{full_type(node)} is an operator of onnxruntime's own, which {target.name} has not",
            _EXPORTED if full_type(node) in FUSED else _CUT,
        )

    own = [] if target.runtime_operators else warn_of_nodes(model, said)
    return own + (target.lacks(model, options) if target.lacks is not None else [])
