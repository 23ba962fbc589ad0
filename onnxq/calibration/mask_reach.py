"""How far a grid must reach so that masks in front of a Softmax mask, however far away they are.

Of all that a Softmax reads, what lies far enough below the largest number of its row becomes 0. So a mask of -1e4 needs
no place on the grid: clipped a few tens below the scores it masks as well. That bound holds for the scores with their
mask; through sums, factors, choices and moves it is followed back to the mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.calibration.statistics import TensorStatistics
from onnxq.graph.recognition.masks import LEAST, MOVES, THROUGH, behind, softmax_nodes
from onnxq.graph.values import constant_array

__all__ = ["Reach", "Reaches", "far_value", "lowest_number", "mask_value"]

_ARITHMETIC = THROUGH - MOVES - {"Where"}
"""What computes a number from several, with a bound that follows from those of the others."""
_CROWD = 2.5
"""Largest over smallest of the values that stand for "masked": of two masks added, and the scores added to them."""
_LOWEST = 50.0
"""Smallest magnitude of a mask value: e**-50 is nothing beside 1."""
_FAR = 4.0
"""Their magnitude over that of all other values, at least."""
_NOTHING = 1e-12
"""Of them, where all others are 0: a mask by itself, which a grid holds."""
_FINER = 3.5
"""Bits by which all that is masked of a row is together less than a step of a grid over one unit."""
_LONG = 1024
"""Elements of a row whose number is known at run time only."""

Numbers = tuple[float, float]
Statistics = Mapping[str, TensorStatistics]


@dataclass(frozen=True, slots=True)
class Reach:
    """What of a tensor masks: infinite where that side never does.

    Attributes:
        down: all numbers from here down.
        up: all from here up, as what is subtracted from scores.
    """

    down: float = -math.inf
    up: float = math.inf

    @property
    def sides(self) -> tuple[bool, bool]:
        """Which sides mask."""
        return self.down > -math.inf, self.up < math.inf

    def __or__(self, other: Reach) -> Reach:
        """What masks for two readers; a side that masks for one of them alone counts."""
        downs = [end for end in (self.down, other.down) if end > -math.inf]
        ups = [end for end in (self.up, other.up) if end < math.inf]
        return Reach(min(downs, default=-math.inf), max(ups, default=math.inf))


class Reaches:
    """What masks, tensor by tensor of those in front of a Softmax.

    Args:
        model: left unchanged.
        statistics: of its tensors, by name.
        bits: of the grids.
    """

    def __init__(self, model: ir.Model, statistics: Statistics, bits: int) -> None:
        self._statistics, self._depth = statistics, math.log(2) * (bits + _FINER)
        self._found: dict[ir.Value, Reach] = {}
        self._lost: set[ir.Value] = set()
        waiting: list[tuple[ir.Value, Reach]] = []
        for node in softmax_nodes(model):
            value = node.inputs[0]
            numbers = self._numbers(value)
            if node.op_type == "Softmax" and value is not None and numbers is not None:
                waiting.append((value, Reach(numbers[0] - self._depth - math.log(_row(node)))))
        while waiting:
            value, reach = waiting.pop()
            before = self._found.get(value)
            now = reach if before is None else before | reach
            if now == before:
                continue
            if before is not None and before.sides != reach.sides:
                self._lost.add(value)
            self._found[value] = now
            maker = value.producer()
            if maker is not None and maker.domain == "" and maker.op_type in THROUGH:
                waiting += self._asked(maker, now)
        self._by_name = {value.name: value for value in self._found}

    def __getitem__(self, tensor: str) -> Reach | None:
        """What of a tensor masks; None where nothing is known to."""
        value = self._by_name.get(tensor)
        return None if value is None else self._found[value]

    def is_all(self, tensor: str) -> bool:
        """Whether all that reads a tensor masks by it, and nothing tells one mask value from another."""
        value = self._by_name.get(tensor)
        return value is not None and all(self._only_masks(other) for other in behind(value))

    def _only_masks(self, value: ir.Value) -> bool:
        if value in self._lost or value not in self._found or value.is_graph_output():
            return False
        ends = (node.op_type in THROUGH or node.op_type == "Softmax" for node, _ in value.uses())
        return all(ends) and all(node.domain == "" for node, _ in value.uses())

    def _asked(self, node: ir.Node, reach: Reach) -> list[tuple[ir.Value, Reach]]:
        """What each input of a node must do so that its output reaches so far."""
        found: list[tuple[ir.Value, Reach]] = []
        inputs = [(at, value) for at, value in enumerate(node.inputs) if value is not None]
        if node.op_type in MOVES or node.op_type == "Clip":
            asking = inputs[:1]
        else:
            asking = inputs[1:] if node.op_type == "Where" else inputs
        for position, value in asking:
            beside = [at for at, _ in inputs if at != position] if node.op_type in _ARITHMETIC else []
            others = {at: self._numbers(node.inputs[at]) for at in beside}
            asked = _back(node.op_type, position, reach, others)
            if asked is None or asked == Reach():
                self._lost.add(value)
            else:
                found.append((value, asked))
        return found

    def _numbers(self, value: ir.Value | None) -> Numbers | None:
        """The ends of a tensor's numbers that are no masks."""
        array = constant_array(value)
        if array is not None:
            if array.dtype.kind not in "fiu" or not array.size:
                return None
            numbers = array[np.abs(array.astype(np.float64)) < LEAST]
            numbers = numbers if numbers.size else array
            return float(numbers.min()), float(numbers.max())
        stats = self._statistics.get(value.name or "") if value is not None else None
        while stats is None and value is not None and (maker := value.producer()) is not None:
            if maker.op_type not in MOVES:  # what shares its input's grid need not have been observed
                break
            value = maker.inputs[0]
            stats = self._statistics.get(value.name or "") if value is not None else None
        return (lowest_number(stats), stats.max) if stats is not None and stats.count else None


def _back(op: str, position: int, reach: Reach, others: Mapping[int, Numbers | None]) -> Reach | None:
    """What an operand must do so that the result reaches so far whatever the others are; None where it cannot."""
    known = {at: ends for at, ends in others.items() if ends is not None}
    if len(known) < len(others):
        return None
    if op in ("Clip", "Max", "Min"):
        return _before_bounds(op, reach, known)
    if op == "Neg":
        return Reach(-reach.up, -reach.down)
    if not known:
        return reach
    low, high = known[1 - position]
    if op == "Add":
        return Reach(reach.down - high, reach.up - low)
    if op == "Sub":
        minuend = Reach(reach.down + low, reach.up + high)
        return minuend if position == 0 else Reach(low - reach.up, high - reach.down)
    return None if op == "Div" and position == 1 else _before_factor(op, reach, low, high)


def _before_bounds(op: str, reach: Reach, known: Mapping[int, Numbers]) -> Reach:
    """What must reach as far in front of a Clip, Max or Min: a side that the other operands cut off does not mask."""
    least = [end for at, (_, end) in known.items() if op == "Max" or (op == "Clip" and at == 1)]
    most = [end for at, (end, _) in known.items() if op == "Min" or (op == "Clip" and at == 2)]
    return Reach(
        reach.down if all(end <= reach.down for end in least) else -math.inf,
        reach.up if all(end >= reach.up for end in most) else math.inf,
    )


def _before_factor(op: str, reach: Reach, low: float, high: float) -> Reach | None:
    """The same in front of a product or quotient with numbers from ``low`` to ``high``, of one sign."""
    if low <= 0.0 <= high:
        return None
    factors = (low, high) if op == "Mul" else (1.0 / low, 1.0 / high)
    down, up = [reach.down / f for f in factors], [reach.up / f for f in factors]
    return Reach(min(down), max(up)) if low > 0.0 else Reach(min(up), max(down))


def _row(node: ir.Node) -> int:
    """Elements over which a Softmax sums."""
    shape, axis = node.inputs[0].shape if node.inputs[0] is not None else None, node.attributes.get_int("axis", -1)
    dim = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return max(dim, 1) if isinstance(dim, int) else _LONG


def mask_value(stats: TensorStatistics) -> float | None:
    """The lowest value of a tensor if it stands for "masked": far below zero, and nothing between it and the others."""
    return stats.min if lowest_number(stats) > stats.min else None


def far_value(stats: TensorStatistics) -> float | None:
    """The value of a tensor farthest from zero if all others but a crowd around it are far smaller, and not all 0."""
    far = stats.min if -stats.min > stats.max else stats.max
    if not stats.count or abs(far) < LEAST:
        return None
    lower, upper, _ = stats.edges()
    others = upper > far / _CROWD if far < 0 else lower < far / _CROWD
    rest = float(max(np.abs(lower[others]).max(), np.abs(upper[others]).max())) if others.any() else 0.0
    return far if _NOTHING * abs(far) < rest <= abs(far) / (_CROWD * _FAR) else None


def lowest_number(stats: TensorStatistics) -> float:
    """The lowest value of a tensor that does not stand for "masked"; of one without masks the lowest of all."""
    if not stats.count or stats.min > -_LOWEST:
        return stats.min
    lower, upper, _ = stats.edges()
    others = upper > stats.min / _CROWD
    if not others.any():
        return stats.min
    rest = float(max(np.abs(lower[others]).max(), np.abs(upper[others]).max()))
    return float(lower[others].min()) if -stats.min / _CROWD >= _FAR * rest else stats.min
