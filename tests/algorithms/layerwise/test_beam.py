"""The search for the best rounding against all roundings there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.algorithms.layerwise import beam as module
from onnxq.algorithms.layerwise.beam import beam
from onnxq.algorithms.layerwise.rounding import Grid, errors, feed_back

Doubles = NDArray[np.float64]


def problem(inputs: int, seed: int, outputs: int = 3) -> tuple[Doubles, Doubles, Grid]:
    """Correlated inputs, one group a channel, and a grid of 2 bits with a zero point."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, inputs, inputs)) @ rng.standard_normal((2, inputs, 50))
    weight = rng.standard_normal((2, outputs, inputs))
    scale = np.abs(weight).max(axis=2, keepdims=True) / 1.5
    return weight, x @ x.transpose(0, 2, 1) / 50, Grid(scale, np.full_like(scale, seed % 2), -2, 1)


def least(weight: Doubles, hessian: Doubles, grid: Grid) -> Doubles:
    """The least error of each output over all integers."""
    integers = np.array(list(itertools.product(range(grid.qmin, grid.qmax + 1), repeat=weight.shape[2])), np.float64)
    found = np.empty(weight.shape[:2])
    for group, output in np.ndindex(*found.shape):
        change = (integers - grid.zero[group, output]) * grid.scale[group, output] - weight[group, output]
        found[group, output] = np.einsum("ki,ij,kj->k", change, hessian[group], change).min()
    return found


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_best_of_all_roundings(seed: int) -> None:
    weight, hessian, grid = problem(5, seed)
    got = beam(weight, hessian, grid)
    np.testing.assert_allclose(errors(got - weight, hessian), least(weight, hessian, grid), rtol=1e-9)
    np.testing.assert_array_equal(got, grid.nearest(got))


def test_a_width_of_one_is_gptq() -> None:
    weight, hessian, grid = problem(12, 0)
    one = feed_back(weight, hessian, grid, by_activation=True)
    np.testing.assert_allclose(beam(weight, hessian, grid, width=1), one, rtol=1e-12)


def test_a_scale_for_every_input() -> None:
    weight, hessian, grid = problem(5, 1)
    got = beam(weight, hessian, grid.full(5))
    np.testing.assert_array_equal(got, beam(weight, hessian, grid))


def test_many_outputs_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian, grid = problem(6, 2, outputs=7)
    whole = beam(weight, hessian, grid)
    monkeypatch.setattr(module, "_NUMBERS", 2 * 6 * 16 * 3)
    np.testing.assert_array_equal(beam(weight, hessian, grid), whole)
