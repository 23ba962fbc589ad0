"""What a target cannot run of a float model: what its table says, and operators of onnxruntime's own."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.passes.fused_chains import FUSED
from onnxq.graph.traverse import all_nodes, describe, full_type
from onnxq.options import Options

__all__ = ["lacks"]

_BLOCKED = "com.microsoft.nchwc"
_EXPORTED = "Give the model as it was exported, before onnxruntime's optimizer fused its operators"
_CUT = "Cut the model there, or export it without"
_BLOCKS = (
    "onnxruntime's optimizer laid channels out in blocks, for the processor that it ran on: no integer kernel reads "
    "them, and no other runtime"
)
_BLOCKS_HINT = "Give the model as it was exported, or optimized at level ORT_ENABLE_EXTENDED at most"


def lacks(model: ir.Model, target: Backend, options: Options) -> list[Finding]:
    """What of a float model the target cannot run.

    Args:
        model: in the form that the target wants.
        target: see ``Backend.lacks`` and ``Backend.runtime_operators``.
        options: how it is quantized.
    """

    def said(node: ir.Node) -> tuple[str, str] | None:
        if node.domain != MICROSOFT:
            return None
        return (
            f"{full_type(node)} is an operator of onnxruntime's own, which {target.name} has not",
            _EXPORTED if full_type(node) in FUSED else _CUT,
        )

    own = [] if target.runtime_operators else warn_of_nodes(model, said)
    blocked = [describe(node) for node in all_nodes(model) if node.domain == _BLOCKED]
    if blocked:
        more = f" and {len(blocked) - 1} more" if len(blocked) > 1 else ""
        own.append(Finding("warning", f"{blocked[0]}{more}", _BLOCKS, _BLOCKS_HINT))
    of_target = target.lacks(model, options) if target.lacks is not None else []
    return own + [finding for finding in of_target if finding.where not in blocked]
