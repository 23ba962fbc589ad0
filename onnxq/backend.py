"""What a target can do, as a table: one row an operator, and how its tensors may be quantized.

A backend is data. The engine (:mod:`onnxq.plan`) reads the rows; no shared code asks which backend it is.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxq.spec import QuantSpec

if TYPE_CHECKING:
    from onnxq.plan import Plan
    from onnxq.quantized import Quantized

__all__ = ["Backend", "Kind", "OpRule"]


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


@dataclass(frozen=True, slots=True)
class OpRule:
    """A table row: how the tensors of one operator type are quantized.

    Attributes:
        op: operator type in the standard ONNX domain.
        kind: see :class:`Kind`.
        data: positions of the activation inputs; ``None`` means every input.
        weights: positions of inputs that are weights when they are constant.
        weight_axis: node, input position → output-channel axis of that weight, or ``None`` for per tensor only.
        bias: position of the bias, if the operator has one.
        output: an integer kernel needs its output quantized. Where ``False`` the output is quantized only when
            another integer operator reads it.
        fixed: the output's real range where the operator's definition gives it (sigmoid: 0 to 1).
        cost: cost per output element as (float kernel, integer kernel), in units of one QuantizeLinear, or a function
            of the node that gives it.
        cost_behind: cost per output element of quantizing directly behind this node while it runs float. Where it is
            not zero, the node's integer kernel is only good where all that it depends on runs in integers.
        when: node → why this node cannot be quantized, ``None`` where it can.
    """

    op: str
    kind: Kind
    data: tuple[int, ...] | None = (0,)
    weights: tuple[int, ...] = ()
    weight_axis: Callable[[ir.Node, int], int | None] | None = None
    bias: int | None = None
    output: bool = True
    fixed: tuple[float, float] | None = None
    cost: tuple[float, float] | Callable[[ir.Node], tuple[float, float]] = (1.0, 1.0)
    cost_behind: float = 0.0
    when: Callable[[ir.Node], str | None] | None = None

    def costs(self, node: ir.Node) -> tuple[float, float]:
        """The cost of a node, see ``cost``."""
        return self.cost(node) if callable(self.cost) else self.cost


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """A target.

    Attributes:
        name: what ``--backend`` takes.
        title: one line for tables.
        activation: spec of activations.
        weight: spec of weights; its granularity is replaced by the operator's channel axis where ``per_channel``.
        bias: ``"int32"`` (scale of data times scale of weight) or ``"float"``.
        rules: rows by operator type.
        per_channel: weights have a scale for each output channel where the operator allows it.
        absorbed: activation functions that vanish into the quantizer behind an integer operator where it saturates at
            the same bounds.
        min_opset: the model is raised to at least this opset.
        quantize_cost: cost per element of entering integers, in the unit of ``OpRule.cost``.
        dequantize_cost: cost per element of leaving them.
        reorder_cost: cost per element of leaving the layout of float convolutions, on top of ``quantize_cost``.
        node_cost: cost of a kernel call whatever its size, in the same unit.
        fused_float: (operator, operator behind it) pairs of which a float kernel computes the second for free → its
            cost per element elsewhere.
        quantizer_bits: widths of the QuantizeLinear that the target runs; activations of another width are written as
            ``onnxq::FakeQuantize``.
        stores_weights: the weights of layers that stay float are stored as integers too.
        finish: a last rewriting of the rendered QDQ model, in place.
        verified: what a real runtime has confirmed, for the table of targets.
        export: writes the artifacts, returns their paths.
    """

    name: str
    title: str
    activation: QuantSpec
    weight: QuantSpec
    rules: Mapping[str, OpRule]
    export: Callable[[Quantized, Path], list[Path]]
    bias: str = "int32"
    per_channel: bool = True
    absorbed: frozenset[str] = field(default_factory=lambda: frozenset({"Relu", "Clip"}))
    min_opset: int = 14
    quantize_cost: float = 1.0
    dequantize_cost: float = 1.0
    reorder_cost: float = 0.0
    node_cost: float = 0.0
    fused_float: Mapping[tuple[str, str], float] = field(default_factory=dict)
    quantizer_bits: frozenset[int] = field(default_factory=lambda: frozenset({8, 16}))
    stores_weights: bool = False
    finish: Callable[[ir.Model, Plan], None] | None = None
    artifacts: str = ""
    verified: str = ""
