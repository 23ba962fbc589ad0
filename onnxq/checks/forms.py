"""Forms of operators that a target lacks, or computes otherwise than they are defined, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import onnx_ir as ir

from onnxq.graph.batch_norm import is_in_training
from onnxq.graph.values import rank_of
from onnxq.rows import plain_max_pool

__all__ = ["OTHER_NORMS", "TRAINING", "WITH_INDICES", "WRAPPING", "Form", "form_of", "has", "in_steps", "is_deep"]


class Form(NamedTuple):
    """A form of some operators.

    Attributes:
        operators: those of the standard that have it.
        words: what it is called, ``{}`` standing for the operator.
        holds: whether a node of these operators has it.
    """

    operators: tuple[str, ...]
    words: str
    holds: Callable[[ir.Node], bool]


def form_of(node: ir.Node, forms: Iterable[Form]) -> str | None:
    """The first of some forms that a node has, in words."""
    found = (form for form in forms if node.op_type in form.operators and form.holds(node))
    return next((form.words.format(node.op_type) for form in found), None)


def has(attribute: str, *values: str, default: str = "") -> Callable[[ir.Node], bool]:
    """Whether an attribute, of this default, is one of some words."""
    return lambda node: node.attributes.get_string(attribute, default) in values


def in_steps(attribute: str) -> Callable[[ir.Node], bool]:
    """Whether an attribute, dilations say, has other numbers than 1."""
    return lambda node: any(step != 1 for step in node.attributes.get_ints(attribute, ()))


def is_deep(node: ir.Node) -> bool:
    """Whether what a node reads first has more than four dimensions."""
    return (rank_of(node.inputs[0]) or 0) > 4


TRAINING = Form(("BatchNormalization",), "{} in training mode", is_in_training)
WITH_INDICES = Form(("MaxPool",), "{} that gives indices", lambda node: plain_max_pool(node) is not None)
WRAPPING = Form(("Pad",), "{} that wraps around", has("mode", "wrap"))
OTHER_NORMS = Form(
    ("LpPool",), "{} of a norm other than 1 and 2", lambda node: node.attributes.get_int("p", 2) not in (1, 2)
)
