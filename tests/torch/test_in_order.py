"""Rows that a TopK picked, each in the place of the nearest one, with gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxq.measuring.chosen_rows import Rows, matched
from onnxq.torch.in_order import in_order
from tests.models import normal


@pytest.mark.parametrize(("shape", "axis"), [((2, 16, 5), -2), ((16, 5), -2), ((2, 5, 16), -1)])
def test_rows_are_those_that_numpy_takes_and_gradients_reach_them(shape: tuple[int, ...], axis: int) -> None:
    exact = normal(*shape, scale=1.0)
    order = np.random.default_rng(1).permutation(16)
    got = np.take(exact, order, axis=axis) + normal(*shape, seed=2, scale=0.01)
    along = Rows((axis,), frozenset({16}))
    given = torch.tensor(got, requires_grad=True)
    found = in_order(given, torch.from_numpy(exact), along)
    assert np.array_equal(found.detach().numpy(), matched(exact, got, along))
    assert np.abs(found.detach().numpy() - exact).max() < 0.1
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None and bool((given.grad == 1).all())


def test_what_is_not_picked_stays_in_its_places() -> None:
    got, exact = torch.tensor(normal(2, 16, 5)), torch.tensor(normal(2, 16, 5, seed=1))
    assert in_order(got, exact, None) is got
    assert in_order(got, exact, Rows((-2,), frozenset({100}))) is got
