"""One option for each of many items: the least total loss under a budget, exactly.

This is the multiple-choice knapsack problem. A Lagrangian bound (Sinha & Zoltners, The Multiple-Choice Knapsack
Problem, 1979) gives a first solution and says of each option by how much it is at least worse than the best; dynamic
programming over partial sums (Nemhauser & Ullmann, 1969), of which only the undominated ones that the bound leaves open
are kept, then finds the best one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Allocation", "allocate"]

Floats = NDArray[np.float64]

_STATES = 400_000
"""Partial sums held at a time; where there would be more, the result may be above the least loss."""
_ROUNDING = 1e-9
"""Relative tolerance on the budget, for sums of floats."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """An option for each item.

    Attributes:
        chosen: index of the option, for each item.
        cost: total cost.
        loss: total loss.
        gap: the loss is at most this much above the least possible, relative; 0 where it is proven to be the least.
    """

    chosen: tuple[int, ...]
    cost: float
    loss: float
    gap: float = 0.0


def allocate(costs: Sequence[Sequence[float]], losses: Sequence[Sequence[float]], budget: float) -> Allocation | None:
    """Choose one option for each item such that the total cost is within the budget and the total loss least.

    Args:
        costs: for each item the cost of its options, finite.
        losses: for each item the loss of its options; options of infinite or unknown loss are not taken.
        budget: largest total cost.

    Returns:
        The choice, or ``None`` where nothing is within the budget.
    """
    budget *= 1 + math.copysign(_ROUNDING, budget)
    items = [_undominated(c, n) for c, n in zip(costs, losses, strict=True)]
    if any(not len(item.index) for item in items):
        return None
    if sum(item.cost[0] for item in items) > budget:
        return None
    first, price = _relaxed(items, budget)
    tolerance = 0.0
    while True:
        found = _search(items, budget, first, price, tolerance)
        if found is not None:
            break
        tolerance = max(10 * tolerance, 1e-6)
    chosen = tuple(int(item.index[k]) for item, k in zip(items, found, strict=True))
    cost, loss = (math.fsum(table[i][k] for i, k in enumerate(chosen)) for table in (costs, losses))
    return Allocation(chosen, cost, loss, tolerance)


@dataclass(frozen=True, slots=True)
class _Item:
    """The options of an item that no other one beats, by rising cost and falling loss."""

    cost: Floats
    loss: Floats
    index: NDArray[np.int64]


def _undominated(costs: Sequence[float], losses: Sequence[float]) -> _Item:
    cost, loss = np.asarray(costs, np.float64), np.asarray(losses, np.float64)
    order = [k for k in np.lexsort((loss, cost)) if math.isfinite(loss[k]) and math.isfinite(cost[k])]
    kept: list[int] = []
    for k in order:
        if not kept or loss[k] < loss[kept[-1]]:
            kept.append(int(k))
    index = np.asarray(kept, np.int64)
    return _Item(cost[index], loss[index], index)


def _relaxed(items: Sequence[_Item], budget: float) -> tuple[list[int], float]:
    """A good choice and the price of cost at the budget: the steepest steps down the convex hulls first."""
    steps = [step for i, item in enumerate(items) for step in _hull_steps(i, item)]
    steps.sort(key=lambda step: (-step[0], step[1], step[2]))
    chosen = [0] * len(items)
    spent = sum(item.cost[0] for item in items)
    price, stopped = 0.0, set()
    for slope, i, k in steps:
        more = items[i].cost[k] - items[i].cost[chosen[i]]
        if i not in stopped and spent + more <= budget:
            chosen[i], spent = k, spent + more
        else:
            price = max(price, slope)
            stopped.add(i)
    while True:  # what is left of the budget: the step of most gain that fits
        best: tuple[float, int, int] | None = None
        for i, item in enumerate(items):
            for k in range(chosen[i] + 1, len(item.index)):
                gain = item.loss[chosen[i]] - item.loss[k]
                if spent + item.cost[k] - item.cost[chosen[i]] <= budget and (best is None or gain > best[0]):
                    best = (float(gain), i, k)
        if best is None:
            return chosen, price
        _, i, k = best
        spent += items[i].cost[k] - items[i].cost[chosen[i]]
        chosen[i] = k


def _hull_steps(i: int, item: _Item) -> list[tuple[float, int, int]]:
    """(loss saved for a unit of cost, item, option) of each step along the lower convex hull, steepest first."""
    hull: list[int] = []
    for k in range(len(item.index)):
        while len(hull) >= 2 and _slope(item, hull[-1], k) >= _slope(item, hull[-2], hull[-1]):
            hull.pop()
        hull.append(k)
    return [(_slope(item, a, b), i, b) for a, b in pairwise(hull)]


def _slope(item: _Item, a: int, b: int) -> float:
    return float((item.loss[a] - item.loss[b]) / (item.cost[b] - item.cost[a]))


def _search(
    items: Sequence[_Item], budget: float, first: Sequence[int], price: float, tolerance: float
) -> list[int] | None:
    """The best choice, or ``first`` where no better one exists; ``None`` where there are too many partial sums."""
    priced = [item.loss + price * item.cost for item in items]
    bound = math.fsum(float(p.min()) for p in priced) - price * budget
    best = math.fsum(float(item.loss[k]) for item, k in zip(items, first, strict=True))
    room = best * (1 - tolerance) - bound  # what a choice may cost above its item's best and still win
    if room <= 0:
        return list(first)
    excess = [p - p.min() for p in priced]
    order = sorted(range(len(items)), key=lambda i: -float(excess[i].max()))
    cheapest = np.cumsum([0.0, *(float(items[i].cost[0]) for i in reversed(order))])[::-1]
    cost, loss, above = np.zeros(1), np.zeros(1), np.zeros(1)
    trail: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for position, i in enumerate(order):
        item, options = items[i], np.nonzero(excess[i] < room)[0]
        more = (cost[:, None] + item.cost[options]).ravel()
        lost = (loss[:, None] + item.loss[options]).ravel()
        over = (above[:, None] + excess[i][options]).ravel()
        open_ = np.nonzero((over < room) & (more + cheapest[position + 1] <= budget))[0]
        ranked = open_[np.lexsort((lost[open_], more[open_]))]
        least = np.minimum.accumulate(lost[ranked])
        ranked = ranked[np.concatenate(([True], least[1:] < least[:-1]))] if len(ranked) else ranked
        if len(ranked) > _STATES:
            return None
        if not len(ranked):
            return list(first)
        cost, loss, above = more[ranked], lost[ranked], over[ranked]
        trail.append((ranked // len(options), options[ranked % len(options)]))
    state = int(np.argmin(loss))
    if loss[state] >= best:
        return list(first)
    chosen = [0] * len(items)
    for i, (parents, taken) in zip(reversed(order), reversed(trail), strict=True):
        chosen[i], state = int(taken[state]), int(parents[state])
    return chosen
