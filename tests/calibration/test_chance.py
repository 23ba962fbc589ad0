"""Which samples stand for their neighbours: by lot, so that no rhythm of the data picks one kind alone."""

from __future__ import annotations

import pytest

from onnxq.calibration.chance import one_of_each_pair


@pytest.mark.parametrize("count", [1, 2, 3, 16, 31, 32])
def test_one_of_each_pair_and_the_others(count: int) -> None:
    taken, left = one_of_each_pair(count)
    assert sorted([*taken, *left]) == list(range(count))
    assert [k // 2 for k in taken] == list(range(-(-count // 2)))
    assert [k // 2 for k in left] == list(range(count // 2))


@pytest.mark.parametrize("rhythm", [2, 4, 8])
def test_kinds_in_turn_come_into_both_parts(rhythm: int) -> None:
    for part in one_of_each_pair(32):
        assert {k % rhythm < rhythm // 2 for k in part} == {True, False}
        assert {k % 2 for k in part} == {0, 1}
