"""What is found node by node."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.graph.traverse import all_nodes, describe

__all__ = ["warn_of_nodes"]


def warn_of_nodes(model: ir.Model, said: Callable[[ir.Node], tuple[str, str] | None]) -> list[Finding]:
    """A warning for each node of which there is something to say, bodies of If, Loop and Scan included.

    Args:
        model: looked at.
        said: node → what is wrong with it and what to do, ``None`` where nothing is.
    """
    pairs = ((node, said(node)) for node in all_nodes(model))
    return [Finding("warning", describe(node), *found) for node, found in pairs if found is not None]
