"""Layers that an artifact quantizes and its runtime computes in float all the same."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnxq.console.terminal import listed
from onnxq.plan import Plan

__all__ = ["run_in_float"]

_NAMED = 4
_BETWEEN = re.compile(r"[\s,]+")
"""What stands between names in a runtime's lines."""


def run_in_float(plan: Plan, title: str, integer: Iterable[str], floating: Iterable[str]) -> list[str]:
    """What to say of multiply-accumulates whose data and weights are integers and that run in float.

    Args:
        plan: of the artifact.
        title: of the runtime.
        integer: what it computes in integers, a line an operator: its type, then names of nodes.
        floating: what it computes in float, in the same way.

    Returns:
        One sentence that names the first few, if any.
    """
    read = {edge.node for edge in plan.by_edge("weight")}
    there = _names(floating) - _names(integer)
    found = [name for name in plan.quantized if name in read and not _BETWEEN.search(name) and name in there]
    if not found:
        return []
    what = "a quantized layer runs" if len(found) == 1 else f"{len(found)} quantized layers run"
    return [f"{what} in float in {title}: {listed(found, _NAMED)}"]


def _names(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in _BETWEEN.split(line)[1:]}
