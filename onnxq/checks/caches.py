"""Attention of onnxruntime's own whose caches hold what nobody wrote: its numbers are those of other memory."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.console.terminal import listed, plural
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of

__all__ = ["check_caches"]

_NAMED = 4
"""Outputs or nodes that are named."""
_PAST = (6, 7)


def check_caches(model: ir.Model) -> list[Finding]:
    """A warning for caches of a window that are outputs, and for keys of before that onnxruntime does not attend to.

    Args:
        model: normalized; left unchanged.
    """
    nodes = [node for node in all_nodes(model) if node.domain == MICROSOFT]
    windows = [node for node in nodes if node.op_type == "GroupQueryAttention" and _has_window(node)]
    forgetful = [node.name or "" for node in nodes if node.op_type == "MultiHeadAttention" and _forgets(node)]
    found = []
    if kept := [out.name or "" for node in windows for out in node.outputs[1:] if out.is_graph_output()]:
        size = max(node.attributes.get_int("local_window_size", 0) for node in windows)
        what = (
            f"{'output' if len(kept) == 1 else 'outputs'} {listed(kept, _NAMED)}: caches of a window, in which "
            "onnxruntime leaves unset what a sample does not fill, so that figures of them compare memory there"
        )
        found.append(
            Finding("warning", "model", what, f"Give samples of at least {size} tokens, or look at the others.")
        )
    if forgetful:
        what = (
            f"{plural(len(forgetful), 'MultiHeadAttention node')} with keys and values of before, and without outputs "
            f"for both, which onnxruntime 1.32 computes wrongly: {listed(forgetful, _NAMED)}"
        )
        found.append(Finding("warning", "model", what, "Name its outputs present_key and present_value too."))
    return found


def _has_window(node: ir.Node) -> bool:
    return node.attributes.get_int("sliding_window_cache", 0) == 1


def _forgets(node: ir.Node) -> bool:
    """Whether a MultiHeadAttention has a past and no present."""
    past = [input_of(node, index) is not None for index in _PAST]
    present = [out.name for out in node.outputs[1:] if out.name]
    return all(past) and not present
