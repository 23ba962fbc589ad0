"""Offsets that may take off most of what they are added to: a grid for what is in front of one would be too coarse.

Such is ``exp(x) - 1``: a grid that holds 0 and numbers about 1 has few steps for what is left of them. What is 0 for
some numbers anyway loses nothing: with an offset its numbers take as much room as without.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.graph.passes.fold_forward import one_affine
from onnxq.graph.recognition.for_bytes import MOVES
from onnxq.graph.recognition.groups import Group
from onnxq.graph.values import input_of, only_reader, scalar

__all__ = ["may_cancel"]

_FUNCTIONS = frozenset({"Celu", "Clip", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu"})
_FUNCTIONS |= {"Softsign", "Swish", "Tanh", "ThresholdedRelu"}
_KINDS = frozenset({"gelu", "hardswish", "mish", "silu"})
"""Kinds of groups, and above operators, that give 0 for some numbers."""


def may_cancel(value: ir.Value, groups: Sequence[Group]) -> bool:
    """Whether an offset may take off most of a tensor: not of what such a function gives, or that scaled or squared.

    Args:
        value: what the offset is added to.
        groups: of its model.
    """
    functions = {output for group in groups if group.kind in _KINDS for output in group.outputs}
    tensor: ir.Value | None = value
    while tensor is not None and tensor not in functions and (maker := tensor.producer()) is not None:
        arithmetic, read = one_affine(maker), input_of(maker, 0)
        if maker.op_type in _FUNCTIONS and maker.domain == "":
            return maker.op_type == "Clip" and not _clips_about_zero(maker)
        if arithmetic is not None and (not arithmetic.shift or only_reader(tensor) is not None):  # which folds as well
            read = maker.inputs[arithmetic.data]
        elif maker.op_type not in ("Pow", *MOVES) and not (maker.op_type == "Mul" and read is input_of(maker, 1)):
            return True
        tensor = read
    return tensor is None or tensor not in functions


def _clips_about_zero(node: ir.Node) -> bool:
    low, high = (scalar(input_of(node, index)) for index in (1, 2))
    return (low is None or low <= 0) and (high is None or high >= 0)
