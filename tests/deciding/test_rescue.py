"""The cheapest set of layers to keep float, and how blame is measured."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from onnxq.deciding.rescue import Blame, blame, groups, groups_apart, to_keep_float


def records(*pairs: tuple[float, float]) -> list[Blame]:
    """Layers ``n0``, ``n1`` … of a noise and a cost."""
    return [Blame((f"n{k}",), noise, cost) for k, (noise, cost) in enumerate(pairs)]


def test_most_noise_for_the_least_cost_comes_first() -> None:
    assert to_keep_float(records((0.1, 5.0), (0.1, 1.0), (0.001, 10.0))) == ["n1", "n0"]
    assert to_keep_float(records((0.02, 1.0), (0.2, 1.0), (0.001, 1.0), (0.001, 1.0))) == ["n1", "n0"]


def test_it_stops_where_the_target_is_met() -> None:
    """18 dB is a noise of 0.0158."""
    assert to_keep_float(records((0.2, 1.0), (0.008, 1.0), (0.007, 1.0))) == ["n0"]


def test_never_more_than_half_of_the_cost() -> None:
    assert to_keep_float(records((0.09, 6.0), (0.001, 4.0))) == []
    assert to_keep_float(records((0.09, 5.0), (0.001, 5.0))) == ["n0"]


def test_a_layer_that_alone_leaves_less_than_10_db_stays_float_whatever_it_costs() -> None:
    assert to_keep_float(records((0.2, 6.0), (0.001, 4.0))) == ["n0"]
    assert to_keep_float(records((0.2, 1.0))) == ["n0"]
    assert to_keep_float(records((0.2, 6.0), (0.09, 3.0), (0.01, 4.0))) == ["n0", "n1"]


def test_a_gain_below_3_db_is_not_worth_it() -> None:
    assert to_keep_float(records((0.09, 5.0), (0.095, 5.0))) == ["n1"]
    assert to_keep_float(records((0.09, 6.0), (0.08, 4.0))) == []


def test_a_layer_that_gives_no_numbers_in_integers_is_kept() -> None:
    assert to_keep_float(records((math.inf, 1.0), (0.001, 5.0))) == ["n0"]
    assert to_keep_float(records((math.inf, 6.0), (0.001, 4.0))) == ["n0"]


def test_nothing_to_blame() -> None:
    assert to_keep_float([]) == []
    assert to_keep_float(records((0.0, 1.0), (0.0, 1.0))) == []


def test_blame_quantizes_one_group_alone() -> None:
    names = {f"n{i}" for i in range(81)}
    kept: list[set[str]] = []
    steps: list[int] = []

    def attempt(floats: Iterable[str]) -> float:
        kept.append(set(floats))
        return 20.0 if kept[-1] != names else 30.0

    layers = {f"n{k}": float(k) for k in range(81)}
    found, rest = blame(layers, groups(list(layers)), attempt, steps.append)
    assert [len(r.nodes) for r in found] == [3] * 27 and steps == list(range(1, 28))
    assert kept.pop(0) == names and rest == pytest.approx(0.001)
    assert all(k | set(r.nodes) == names for k, r in zip(kept, found, strict=True))
    assert all(not k & set(r.nodes) for k, r in zip(kept, found, strict=True))
    assert [r.noise for r in found] == pytest.approx([0.009] * 27)
    assert found[1].cost == 3 + 4 + 5


def test_layers_are_not_to_blame_for_what_is_quantized_besides_them() -> None:
    """Every one of them alone leaves 12 dB, and so does none of them."""
    tried: list[set[str]] = []

    def attempt(floats: Iterable[str]) -> float:
        tried.append(set(floats))
        return 12.0 - 0.1 * (4 - len(tried[-1]))

    layers = {f"n{k}": 1.0 for k in range(4)}
    together = groups(list(layers))
    found, rest = blame(layers, together, attempt)
    assert to_keep_float(found, rest) == [] and len(tried) == 5
    tried.clear()
    assert blame(layers, together, attempt, in_hope=True)[0] == []
    assert tried == [set(layers), set()]


def test_sorts_share_the_measurements_by_their_numbers() -> None:
    layers, sums = [f"layer{k}" for k in range(60)], [f"sum{k}" for k in range(20)]
    found = groups_apart([layers, [], sums])
    assert len(found) == 40 and [name for group in found for name in group] == [*layers, *sums]
    assert all(len({name.rstrip("0123456789") for name in group}) == 1 for group in found)
    assert groups_apart([layers, sums[:1]], 8)[-1] == ("sum0",), "every sort has one"
    assert groups_apart([[], []]) == []
