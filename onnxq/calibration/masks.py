"""Masks that no grid holds beside the scores, seen in the data or not: in front of a softmax, and elsewhere.

Statistics leave out what is infinite or beyond 1e30. A mask may be milder (-1e4, -65504): values crowd together far
from all others, and one grid for them and the scores loses these. Data without padding shows a mask as zeros, or not
at all: quantized by that, it would mask nothing in use. Large numbers elsewhere are numbers, unless they come from a
constant and all others are far smaller: the scores of a recognizer, with -1e4 behind the end of what was said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache, partial

import onnx_ir as ir

from onnxq.calibration.mask_reach import Reach, Reaches, far_value, mask_value
from onnxq.calibration.statistics import SENTINEL, TensorStatistics
from onnxq.console.terminal import plural
from onnxq.graph.recognition.masks import THROUGH, before_softmax, behind, largest_mask, put_in_place
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_filled
from onnxq.plan import Plan

__all__ = ["Masks", "find_masks"]

_HINT = "pad some calibration samples if padding is possible in use"
_ALIKE = 2.0
"""Quotient of what the data shows of a mask and the constant that it comes from, at most."""
_WIDEST = 16
"""Bits of the finest grids, which reach farthest."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Tensors with masks, each with the reason why nodes that touch it should stay float.

    Attributes:
        beyond: they hold, or can hold, what is infinite or beyond 1e30: no grid holds them.
        unseen: the data shows nothing of a mask that they can hold.
        seen: the data shows milder masks (-1e4, -65504): a grid that holds them loses the scores.
        reaches: bits of grids → how far these must reach for masks to mask.
    """

    beyond: Mapping[str, str]
    unseen: Mapping[str, str]
    seen: Mapping[str, str]
    reaches: Callable[[int], Reaches]

    def to_avoid(self, *, mixes: bool, everything: bool) -> dict[str, str]:
        """The tensors that no quantized node may touch, with the reasons.

        Args:
            mixes: the target runs float nodes among integer ones.
            everything: the user wants quantized what can be.
        """
        float_too = mixes and not everything
        some = self.unseen if mixes else {}
        seen = {name: why for name, why in self.seen.items() if float_too or not self.clipped(name)}
        return {**seen, **some, **self.beyond}

    def clipped(self, tensor: str) -> bool:
        """Whether a tensor's masks that the data shows need no place on its grid: clipped they mask as well."""
        if tensor not in self.seen:
            return False
        reaches = self.reaches(_WIDEST)
        reach = reaches[tensor]
        return reach is not None and reach.down > -math.inf and reaches.is_all(tensor)

    def reach(self, tensor: str, bits: int) -> Reach:
        """What a tensor's grid must hold beside its numbers so that its masks mask; nothing where it has none.

        Args:
            tensor: its name.
            bits: of the grid.
        """
        found = self.reaches(bits)[tensor] if tensor in self.unseen or self.clipped(tensor) else None
        return found or Reach()

    def ignored(self, plan: Plan) -> list[str]:
        """What to say of a plan that quantizes tensors by data that shows nothing of their masks.

        Where it is known how far a grid must reach for masks to mask it does, and there is nothing to say.
        """
        observed = set(plan.observed())
        tensors = [tensor for tensor in self.unseen if tensor in observed]  # the nearest to the softmax first
        tensors = [tensor for tensor in tensors if self.reach(tensor, _WIDEST) == Reach()]
        if not tensors:
            return []
        more = f" (and {plural(len(tensors) - 1, 'more tensor')} beside it)" if len(tensors) > 1 else ""
        return [f"{self.unseen[tensors[0]]}{more}: {plan.backend} quantizes it, and would ignore what it masks"]


def find_masks(model: ir.Model, statistics: Mapping[str, TensorStatistics]) -> Masks:
    """The tensors in front of a softmax that mask some of it, as the data shows or the graph.

    Args:
        model: left unchanged.
        statistics: of its tensors, by name.
    """
    beyond: dict[str, str] = {}
    unseen: dict[str, str] = {}
    mild: dict[str, str] = {}
    values = before_softmax(model)
    inside = set(values)
    for value in values:
        name, stats = value.name or "", statistics.get(value.name or "")
        if stats is not None and (stats.sentinels or stats.inf):
            beyond.setdefault(name, f"tensor {name!r} holds mask values (infinite, or beyond 1e30) among its numbers")
        elif stats is not None and (low := mask_value(stats)) is not None:
            mild[name] = f"tensor {name!r} holds mask values ({low:g}) among its numbers"
        hidden = _hidden(value, stats)
        if hidden is None:
            continue
        is_zero, mask = hidden
        touched = [v for v in behind(value) if v in inside]
        if mask is not None and any(_shows(statistics.get(v.name or ""), mask) for v in touched):
            continue
        what = "is zero" if is_zero else "shows nothing of its mask"
        where = "before a Softmax, as masks are" if mask is None else f"and {mask:.2g} in use where it masks"
        kind = beyond if mask is not None and abs(mask) > SENTINEL else unseen
        for other in touched:
            kind.setdefault(other.name or "", f"tensor {name!r} {what} on all of the data, {where}; {_HINT}")
    mild |= _filled(model, statistics, inside)
    unseen = {name: why for name, why in unseen.items() if name not in beyond}
    return Masks(beyond, unseen, mild, cache(partial(Reaches, model, statistics)))


def _filled(model: ir.Model, statistics: Mapping[str, TensorStatistics], known: Container[ir.Value]) -> dict[str, str]:
    """The tensors with far values among their numbers that a constant has put there, with the reasons.

    Args:
        model: left unchanged.
        statistics: of its tensors, by name.
        known: what a softmax sees: it says how far a grid must reach.
    """
    found = {}
    nodes = (node for node in all_nodes(model) if node.op_type in THROUGH and node.domain == "")
    for value in (value for node in nodes for value in node.outputs if value not in known):
        name, stats = value.name or "", statistics.get(value.name or "")
        far = far_value(stats) if stats is not None else None
        mask = largest_mask(value) if far is not None else None
        if far is not None and mask is not None and 1 / _ALIKE <= far / mask <= _ALIKE:
            found[name] = f"tensor {name!r} holds mask values ({far:g}) beside numbers far smaller: no grid has both"
    return found


def _hidden(value: ir.Value, stats: TensorStatistics | None) -> tuple[bool, float | None] | None:
    """A mask in use that the data may not show: whether the tensor is zero on all of it, and the mask, where the graph
    tells; None of a tensor that nothing is known to mask by.
    """
    zero = stats is not None and bool(stats.count) and stats.min == stats.max == 0.0 and not is_filled(value)
    mask = largest_mask(value) if zero else put_in_place(value)
    return None if mask is None and not zero else (zero, mask)


def _shows(stats: TensorStatistics | None, mask: float) -> bool:
    """Whether the data shows a mask value in a tensor."""
    if stats is None:
        return False
    far = stats.min <= mask / 2 if mask < 0 else stats.max >= mask / 2
    return bool(stats.inf or stats.sentinels or (stats.count and far))
