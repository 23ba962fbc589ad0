"""A row of a target's table: one operator, and how its tensors may be quantized."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.spec import QuantSpec

__all__ = ["ANY_BITS", "Cost", "Kind", "OpRule"]

ANY_BITS = frozenset(range(2, 17))


class Kind(enum.Enum):
    """What quantizing an operator is good for; placement decides by it."""

    COMPUTE = "compute"
    """Multiply-accumulate with a constant weight: always wanted in integers."""
    PRODUCT = "product"
    """Matrix product of two activations."""
    ELEMENTWISE = "elementwise"
    """Cheap arithmetic: worth it only where it saves conversions."""
    MOVEMENT = "movement"
    """Moves or selects values: input and output share one scale."""
    WEIGHT_ONLY = "weight only"
    """No integer kernel: constant weights are stored as integers, the arithmetic stays float."""


Cost = Callable[[ir.Node, float], tuple[float, float]]
"""Node, number of elements of its output, at least 1 → cost for each of them of its float and of its integer kernel."""


@dataclass(frozen=True, slots=True)
class OpRule:
    """A table row: how the tensors of one operator type are quantized.

    Attributes:
        op: operator type in the standard ONNX domain.
        kind: see :class:`Kind`.
        data: positions of the activation inputs, or a function of the node that gives them; ``None`` means every input.
        weights: positions of inputs that are weights when they are constant.
        weight_axis: node, input position → output-channel axis of that weight, or ``None`` for per tensor only.
        bias: position of the bias, if the operator has one.
        output: an integer kernel needs its output quantized, or a function of the node that says whether. Where not,
            the output is quantized only when another integer operator reads it.
        activation: spec of the data inputs where it is not the backend's, or a function of the tensor that gives it;
            its range method is the user's.
        weight: spec of the weights where it is not the backend's.
        same_scale: all activations that the operator reads and writes share one scale, that of its first output; for
            data movement the first input's scale is shared whether this is set or not. Or a function of the node that
            says whether; the first line of its docstring says on the target's page of which nodes.
        own_scale: the output keeps its own scale where an operator of one scale reads it: its kernel writes no other.
        weight_bits: widths of weights that the operator's kernel has; where another is asked for, its spec's is taken.
        act_bits: widths of activations that it has; the node stays float where another is asked for.
        fixed: the output's real range where the operator's definition gives it (sigmoid: 0 to 1).
        cost: cost per output element as (float kernel, integer kernel), in a unit of the target's own, or a function
            of the node and the number of these elements that gives it.
        cost_behind: cost per output element of quantizing directly behind this node while it runs float. Where it is
            not zero, the node's integer kernel is only good where all that it depends on runs in integers.
        when: node → why this node cannot be quantized, ``None`` where it can. The first line of its docstring says on
            the target's page which nodes can; :class:`onnxq.rows.Never` says that none can.
    """

    op: str
    kind: Kind
    data: tuple[int, ...] | Callable[[ir.Node], tuple[int, ...]] | None = (0,)
    weights: tuple[int, ...] = ()
    weight_axis: Callable[[ir.Node, int], int | None] | None = None
    bias: int | None = None
    output: bool | Callable[[ir.Node], bool] = True
    activation: QuantSpec | Callable[[ir.Value], QuantSpec] | None = None
    weight: QuantSpec | None = None
    same_scale: bool | Callable[[ir.Node], bool] = False
    own_scale: bool = False
    weight_bits: frozenset[int] = ANY_BITS
    act_bits: frozenset[int] = ANY_BITS
    fixed: tuple[float, float] | None = None
    cost: tuple[float, float] | Cost = (1.0, 1.0)
    cost_behind: float = 0.0
    when: Callable[[ir.Node], str | None] | None = None

    def reads(self, value: ir.Value) -> QuantSpec | None:
        """The spec of a tensor among the data inputs where it is not the backend's, see ``activation``."""
        return self.activation(value) if callable(self.activation) else self.activation

    def needs_output(self, node: ir.Node) -> bool:
        """Whether the integer kernel of a node needs its output quantized, see ``output``."""
        return self.output(node) if callable(self.output) else self.output

    def shares(self, node: ir.Node) -> bool:
        """Whether what a node reads and writes has one scale, see ``same_scale``."""
        return self.same_scale(node) if callable(self.same_scale) else self.same_scale

    def costs(self, node: ir.Node, elements: float) -> tuple[float, float]:
        """The cost of a node whose output has so many elements, for all of them, see ``cost``."""
        as_float, as_integer = self.cost(node, max(elements, 1.0)) if callable(self.cost) else self.cost
        return as_float * elements, as_integer * elements
