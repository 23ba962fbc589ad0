"""Random rotations: orthogonal, mean kept where that is asked for, and no channel left to stand out."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.algorithms.channels.rotation import Matrix, Rotation, rotation

SIZES = [1, 2, 3, 48, 514, 768, 1024, 1032]
"""513 and more have factors, 514 of which one would be large."""


def matrix(made: Rotation) -> Matrix:
    """All of it."""
    return made.along(np.eye(len(made.order)), 0)


@pytest.mark.parametrize("keeps_mean", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_they_are_orthogonal(size: int, keeps_mean: bool) -> None:
    made = matrix(rotation(size, np.random.default_rng(5), keeps_mean=keeps_mean))
    np.testing.assert_allclose(made @ made.T, np.eye(size), atol=1e-11)
    if keeps_mean:
        np.testing.assert_allclose(made.sum(axis=1), 1.0, atol=1e-11)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [6, 768])
def test_an_axis_is_multiplied(size: int, axis: int) -> None:
    shape = [2, 3, 4]
    shape[axis] = size
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    made = rotation(size, np.random.default_rng(5), keeps_mean=True)
    want = np.moveaxis(np.tensordot(matrix(made), array.astype(np.float64), (1, axis)), 0, axis)
    np.testing.assert_allclose(made.along(array, axis), want, atol=1e-11)


@pytest.mark.parametrize("keeps_mean", [False, True])
@pytest.mark.parametrize("size", [512, 640, 768, 2048])
def test_one_channel_is_spread_over_all(size: int, keeps_mean: bool) -> None:
    """Normally distributed numbers, as many, have their largest at 5 deviations."""
    made = matrix(rotation(size, np.random.default_rng(5), keeps_mean=keeps_mean))
    assert np.abs(made).max() * size**0.5 < 6.0
    off_diagonal = made - np.diag(np.diag(made))
    assert abs(off_diagonal.mean()) < 2.0 / size


def test_every_seed_gives_another() -> None:
    digests = {
        rotation(768, np.random.default_rng(seed), keeps_mean=keeps_mean).digest()
        for seed in range(4)
        for keeps_mean in (False, True)
    }
    assert len(digests) == 8
