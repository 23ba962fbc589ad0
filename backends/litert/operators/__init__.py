"""How operators of ONNX are said in TensorFlow Lite, by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxq.backends.litert.operators import (
    convolutions,
    elementwise,
    functions,
    hard,
    matrices,
    movement,
    norms,
    padding,
    picking,
    pools,
    reductions,
    resizes,
)
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_FAMILIES = (
    convolutions,
    elementwise,
    functions,
    hard,
    matrices,
    movement,
    norms,
    padding,
    picking,
    pools,
    reductions,
    resizes,
)
OPERATORS: Mapping[str, Callable[[Translation, ir.Node], None]] = {
    name: translate for family in _FAMILIES for name, translate in family.OPERATORS.items()
}
"""Operator of ONNX → what adds it to a translation; raises RefusedError where it cannot."""
