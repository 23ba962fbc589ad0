from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxq.calibration.keep import Keeper


def _indices(total: int, most: int, most_bytes: int = 1 << 30, skip: tuple[int, ...] = ()) -> list[int]:
    keeper = Keeper(most, most_bytes)
    for index in range(total):
        if keeper.wants(index) and index not in skip:
            keeper.offer(index, {"x": np.zeros(10, np.float32)}, {"y": np.zeros(10, np.float32)})
    return [sample.index for sample in keeper.kept]


def test_one_of_each_block() -> None:
    assert _indices(3, 8) == [0, 1, 2]
    assert _indices(8, 8) == list(range(8))
    for total, stride in ((9, 2), (64, 8), (1000, 128)):
        assert [index // stride for index in _indices(total, 8)] == list(range(-(-total // stride)))
    assert len(_indices(10, 1)) == 1 and _indices(10, 0) == []


@pytest.mark.parametrize("rhythm", [2, 3, 4, 8, 10, 16])
def test_data_with_a_rhythm_is_not_met_in_step(rhythm: int) -> None:
    """As of a decoder, prefills and steps in turn, or classes in a cycle."""
    found = [index % rhythm for index in _indices(640, 16)]
    assert len(set(found)) >= min(rhythm, 16) / 2
    assert max(found.count(kind) for kind in found) <= 0.75 * len(found)


@pytest.mark.parametrize("total", [5, 64, 100, 777])
def test_bounds(total: int) -> None:
    for most in (1, 2, 5, 8):
        assert 1 <= len(_indices(total, most)) <= most
    assert 80 * len(_indices(total, 8, most_bytes=500)) <= 500
    assert len(_indices(total, 8, most_bytes=1)) == 1, "one is held in any case"


@pytest.mark.parametrize("total", [3, 8, 100, 777])
def test_a_few_of_large_samples_may_take_more(total: int) -> None:
    """A model with many outputs, or with large ones: one sample would decide what stays float."""
    assert 3 <= len(_indices(total, 16, most_bytes=100)) <= 4
    assert len(_indices(total, 16, most_bytes=50)) == 2, "not above four times the bytes"


@pytest.mark.parametrize("total", [1, 8, 9, 64, 65, 100, 777])
def test_a_known_number_of_samples_changes_nothing_but_what_is_held_in_vain(total: int) -> None:
    keeper, asked = Keeper(8, 1 << 30, total), 0
    for index in range(total):
        if keeper.wants(index):
            asked += 1
            keeper.offer(index, {"x": np.zeros(10, np.float32)}, {})
    assert [sample.index for sample in keeper.kept] == _indices(total, 8) and asked == len(keeper.kept)


@pytest.mark.parametrize("total", [8, 9, 65, 100, 777])
def test_a_known_number_of_large_samples_changes_nothing(total: int) -> None:
    keeper = Keeper(8, 100, total)
    for index in range(total):
        if keeper.wants(index):
            keeper.offer(index, {"x": np.zeros(10, np.float32)}, {"y": np.zeros(10, np.float32)})
    assert [sample.index for sample in keeper.kept] == _indices(total, 8, most_bytes=100)


def test_unsound_samples_are_replaced_by_the_next() -> None:
    assert _indices(4, 8, skip=(0, 2)) == [1, 3]


def test_copies_and_types() -> None:
    keeper = Keeper(4, 1 << 20)
    x = np.zeros(3, np.float32)
    keeper.offer(0, {"x": x}, {"y": x[::2], "t": np.array(["a"], object)})
    x[:] = 1
    assert not keeper.kept[0].feeds["x"].any() and keeper.kept[0].outputs["y"].shape == (2,)
    keeper.offer(1, {"x": np.array([object()], object)}, {})
    assert len(keeper.kept) == 1, "what a file cannot hold is not kept"


def test_numbers_are_held_in_the_types_that_they_came_in() -> None:
    """But for those that a file without pickle has no type for; float32 holds these exactly."""
    keeper = Keeper(2, 1 << 20)
    bfloat = np.array([1.5, -3.0], ml_dtypes.bfloat16)
    double = np.array([0.1, 1e300])
    half = np.array([0.5], np.float16)
    keeper.offer(0, {"a": double, "b": bfloat}, {"c": half, "d": np.array([7])})
    (sample,) = keeper.kept
    arrays = {**sample.feeds, **sample.outputs}
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "a": "float64", "b": "float32", "c": "float16", "d": "int64",
    }  # fmt: skip
    assert arrays["a"].tolist() == double.tolist() and arrays["b"].tolist() == [1.5, -3.0]
