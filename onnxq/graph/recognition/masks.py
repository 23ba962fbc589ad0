"""What stands in front of a softmax, and the constants there that mask: so low that nothing is left of them behind it.

A mask is added to the scores (0, or -3.4e38 where padded), or a Where puts it in their place. Whether any of it is seen
is up to the data; that it can be is in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import array_of, constant_array

__all__ = ["LEAST", "MOVES", "THROUGH", "before_softmax", "behind", "largest_mask", "put_in_place", "softmax_nodes"]

MOVES = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that leave every number of their first input what it is."""
THROUGH = MOVES | {"Add", "Clip", "Div", "Max", "Min", "Mul", "Neg", "Sub", "Where"}
"""Operators that a mask goes through on its way to a softmax."""
_MADE_OF = THROUGH | {"Concat", "ConstantOfShape", "ScatterElements", "ScatterND", "Slice", "Tile", "Trilu"}
"""What masks are made with; what else reads numbers makes others."""
_SOFTMAX = frozenset({"LogSoftmax", "Softmax"})
LEAST = 1e3
"""Smallest magnitude of a constant that masks: scores are tens, and scales of theirs up to a hundred."""


def before_softmax(model: ir.Model) -> list[ir.Value]:
    """The tensors that a Softmax reads, and those that they are made of by sums, factors, choices and moves alone."""
    return _upwards([node.inputs[0] for node in softmax_nodes(model)], THROUGH)


def softmax_nodes(model: ir.Model) -> list[ir.Node]:
    """Every Softmax and LogSoftmax."""
    return [node for node in all_nodes(model) if node.op_type in _SOFTMAX and node.domain == ""]


def behind(value: ir.Value) -> list[ir.Value]:
    """A tensor and all that such operators make of it."""
    found, stack = {value: None}, [value]
    while stack:
        for node, _ in stack.pop().uses():
            if node.op_type in THROUGH and node.domain == "" and node.outputs[0] not in found:
                found[node.outputs[0]] = None
                stack.append(node.outputs[0])
    return list(found)


def put_in_place(value: ir.Value) -> float | None:
    """The masking constant that a Where puts in the place of numbers, if a value is made by such a one."""
    node = value.producer()
    if node is None or node.op_type != "Where" or node.domain != "":
        return None
    return _largest(number for branch in node.inputs[1:] if branch is not None for number in _constants([branch]))


def largest_mask(value: ir.Value) -> float | None:
    """The masking constant farthest from zero among all that a value is made of; ``None`` if there is none."""
    return _largest(_constants(_upwards([value], _MADE_OF)))


def _upwards(stack: list[ir.Value | None], through: frozenset[str]) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}
    while stack:
        value = stack.pop()
        if value is None or value in found:
            continue
        found[value] = None
        producer = value.producer()
        if producer is not None and producer.op_type in through and producer.domain == "":
            stack += list(producer.inputs)
    return list(found)


def _constants(values: list[ir.Value]) -> Iterator[float]:
    """The ends of those values that are floating-point constants, or one number repeated."""
    for value in values:
        array, node = constant_array(value), value.producer()
        while array is None and node is not None and node.op_type in ("Expand", "Trilu") and node.inputs[0] is not None:
            array, node = constant_array(node.inputs[0]), node.inputs[0].producer()
        if array is None and node is not None and node.op_type == "ConstantOfShape" and "value" in node.attributes:
            array = array_of(node.attributes["value"].as_tensor())
        if array is not None and array.size and array.dtype.kind == "f":
            yield from (float(array.min()), float(array.max()))


def _largest(numbers: Iterator[float]) -> float | None:
    return max((n for n in numbers if not np.isnan(n) and abs(n) >= LEAST), key=abs, default=None)
