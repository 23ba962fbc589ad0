"""Budgets for choosing bits: what is asked for, and what each layer costs at each width."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.errors import OptionError
from onnxq.measuring.probe import Part
from onnxq.planning.conversions import entering, leaving
from onnxq.planning.macs import multiply_accumulates, size_of
from onnxq.planning.table_rows import row
from onnxq.spec import QuantSpec
from onnxq.suggest import nearest

__all__ = ["FLOAT", "KINDS", "Budget", "Costs", "parse_budget", "parse_widths", "stored_bits"]

FLOAT = 32
"""Stands for a layer that stays float."""

KINDS = {
    "avg_bits": "average bits of a weight",
    "size": "size of the weights as stored, as a share of that in 8 bits",
    "macs_bits": "multiply-accumulates times bits of weight times bits of data, as a share of that in 8 bits",
    "latency": "time by the target's table of costs, where it has one (onnxruntime has), as a share of that in 8 bits",
    "sqnr": "SQNR at the worst output to reach, in dB, as cheaply as it goes",
}

_WIDTHS = {"avg_bits": "3-8", "size": "4/8", "macs_bits": "4/8", "latency": "8/float", "sqnr": "4/8/16"}
"""Widths of weights to choose from where none are given."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What is asked for.

    Attributes:
        kind: one of :data:`KINDS`.
        amount: in the unit of the kind.
    """

    kind: str
    amount: float

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of weights to choose from where none are given."""
        return parse_widths(_WIDTHS[self.kind])

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount:g}"


def parse_budget(text: str) -> Budget:
    """Read ``KIND:AMOUNT``, for example ``size:0.6`` or ``avg_bits:6``.

    Raises:
        OptionError: an unknown kind, or an amount that is no positive number.
    """
    kind, _, amount = text.replace("=", ":").partition(":")
    kind = kind.strip().replace("-", "_")
    if kind not in KINDS:
        hint = nearest(kind, KINDS, title="kinds") or f"Kinds: {', '.join(KINDS)}."
        raise OptionError(f"{text!r} is not a budget", where="mixed_precision budget", hint=hint)
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        hint = f"Write {kind}:NUMBER ({KINDS[kind]})"
        raise OptionError(f"{amount!r} is not a positive number", where="mixed_precision budget", hint=hint)
    return Budget(kind, number)


_LEAST_BITS = 2


def parse_widths(text: str) -> tuple[int, ...]:
    """Read ``3-8``, ``4/8/16`` or ``4/8/float``: widths in bits, rising; :data:`FLOAT` for float.

    Raises:
        OptionError: anything else.
    """
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split("/"))):
        if part == "float":
            found.add(FLOAT)
        elif match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, last + 1))
        else:
            raise OptionError(f"{text!r} is not a list of widths", where="mixed_precision", hint="As in 3-8 or 4/8/16")
    if not found or min(found) < _LEAST_BITS or any(16 < bits != FLOAT for bits in found):
        raise OptionError(f"{text!r} holds a width that is not {_LEAST_BITS} to 16", where="mixed_precision")
    return tuple(sorted(found))


@dataclass(frozen=True)
class Costs:
    """What layers cost.

    Attributes:
        kind: of the budget.
        model: the float model.
        target: its table of costs gives the latency.
        sizes: tensor name → number of elements.
    """

    kind: str
    model: ir.Model
    target: Backend
    sizes: Mapping[str, int]
    _nodes: dict[str, ir.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes.update({node.name: node for node in self.model.graph.all_nodes() if node.name})

    def of(self, part: Part, bits: int, act_bits: int = 8) -> float:
        """The cost of a layer's weights at a width, its data at another, in the unit of :meth:`limit`."""
        if self.kind == "avg_bits":
            return float(part.elements * bits)
        if self.kind in ("size", "sqnr"):
            return float(part.elements * stored_bits(bits))
        if self.kind == "macs_bits":
            data = FLOAT if bits == FLOAT else act_bits
            return float(sum(multiply_accumulates(self._nodes[name], self.sizes) for name in part.nodes) * bits * data)
        return math.fsum(self._latency(name, bits, act_bits) for name in part.nodes)

    def limit(self, parts: Sequence[Part], amount: float) -> float:
        """The largest total cost that a budget allows.

        Args:
            parts: all layers that are chosen for.
            amount: of the budget.
        """
        if self.kind == "avg_bits":
            return amount * sum(part.elements for part in parts)
        return amount * math.fsum(self.of(part, 8) for part in parts)

    def _latency(self, name: str, bits: int, act_bits: int) -> float:
        """Integer kernels take 8-bit data and weights stored in at most 8; the rest runs float between conversions."""
        node = self._nodes[name]
        rule = row(self.target, node)
        if rule is None or rule.kind is not Kind.COMPUTE:
            return 0.0
        count = size_of(node.outputs[0], self.sizes)
        as_float, as_integer = rule.costs(node, count)
        if stored_bits(bits) <= 8 and act_bits <= 8:
            return as_integer
        data, made = node.inputs[0], node.outputs[0]
        around = leaving(self.target, data, size_of(data, self.sizes)) if data is not None else 0.0
        return as_float + around + entering(self.target, made, count)


def stored_bits(bits: int) -> int:
    """Width that a weight is stored in: ONNX has integers of 4, 8 and 16 bits."""
    return FLOAT if bits == FLOAT else QuantSpec(bits).storage_bits
