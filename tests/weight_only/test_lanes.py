from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.nvfp4.recipe import Nvfp4
from onnxq.ranged import from_range
from onnxq.weight_only import grid, lanes
from onnxq.weight_only.grid import Coded, nearest
from onnxq.weight_only.recipe import Recipe
from tests.models import normal

needs_kernel = pytest.mark.skipif(lanes.KERNEL == "numpy", reason="the C extension was not built")
_RECIPES = [
    *(Recipe(bits, block, symmetric) for bits in (4, 8) for block in (32, 128) for symmetric in (True, False)),
    *(Recipe(2, block, symmetric, format="matmulnbits") for block in (32, 128) for symmetric in (True, False)),
    Recipe(4, 16, format="matmulnbits"),
    Recipe(4, 256),
    Nvfp4(),
]


def _matrix(outputs: int, inputs: int) -> NDArray[np.float32]:
    """Blocks of many kinds: heavy tails, one sign, all zero, tiny, huge."""
    x = np.random.default_rng(0).standard_t(3, (outputs, inputs)).astype(np.float32)
    x[0] = np.abs(x[0])
    x[1] = -np.abs(x[1])
    x[2], x[3], x[4] = 0, x[3] * np.float32(1e-39), x[4] * np.float32(1e30)
    x[5] = np.rint(x[5])  # halves of steps
    return x


def _same(one: Coded, other: Coded) -> bool:
    pairs = ((one.codes, other.codes), (one.scale, other.scale), (one.zero, other.zero))
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


@needs_kernel
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("recipe", _RECIPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 256), (70, 300), (257, 40)], ids=str)
def test_the_kernel_gives_what_numpy_gives(
    recipe: Recipe, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = _matrix(*shape)
    across = np.ascontiguousarray(matrix.T).T
    made = [nearest(m, recipe.spec(), either_sign=recipe.either_sign) for m in (matrix, across)]
    monkeypatch.setattr(lanes, "_lanes", None)
    made += [nearest(m, recipe.spec(), either_sign=recipe.either_sign) for m in (matrix, across)]
    assert all(_same(made[0], other) for other in made[1:])


@pytest.mark.parametrize("piece", [64, 700, 1 << 12])
@pytest.mark.parametrize("recipe", [Recipe(4, 32, False), Recipe(4, 32, format="matmulnbits")], ids=str)
def test_pieces_change_nothing(piece: int, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = normal(50, 75, scale=1.0)
    expected = nearest(matrix, recipe.spec(), either_sign=recipe.either_sign)
    monkeypatch.setattr(grid, "_PIECE", piece)
    for view in (matrix, np.ascontiguousarray(matrix.T).T, np.repeat(matrix, 2, 1)[:, ::2]):
        assert _same(expected, nearest(view, recipe.spec(), either_sign=recipe.either_sign))


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (3, 1)], ids=str)
def test_vectors(shape: tuple[int, int]) -> None:
    matrix = normal(*shape, scale=1.0)
    assert _same(nearest(matrix, Recipe().spec()), nearest(np.ascontiguousarray(matrix.T).T, Recipe().spec()))


def test_the_first_of_equal_ones_is_picked_and_none_where_no_error_is_finite() -> None:
    spec = Recipe().spec()
    x = np.full((1, 32, 2), 1, np.float32)
    x[..., 1] = 3e38
    scales = np.ones((3, 1, 2), np.float32)
    with np.errstate(over="ignore"):
        best = lanes.pick(x, scales, np.zeros_like(scales), spec)
    np.testing.assert_array_equal(best, [[0, 3]])


def test_symmetric_scales_are_those_of_ranges() -> None:
    reach = np.abs(np.random.default_rng(0).standard_normal(20_000).astype(np.float32))
    reach[:4] = 0, 1e-45, 1e-38, 3.4e38
    for recipe in (Recipe(), Recipe(2, 32, format="matmulnbits")):
        expected = from_range(-reach, reach, recipe.spec()).scale
        np.testing.assert_array_equal(grid._symmetric_scale(reach, recipe.spec()), expected)


@needs_kernel
def test_the_kernel_refuses_wrong_buffers() -> None:
    kernel: Any = lanes._lanes
    x, numbers, codes = np.zeros((2, 32, 5), np.float32), np.ones((2, 5), np.float32), np.zeros((2, 32, 5), np.int8)
    best = np.zeros((2, 5), np.uint8)
    good: dict[str, tuple[Any, ...]] = {
        "ends": (x, numbers, numbers),
        "pick": (x, numbers, numbers, -8, 7, best),
        "code": (x, numbers, numbers, -8, 7, codes),
    }
    for name, arguments in good.items():
        getattr(kernel, name)(*arguments)
        for position, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                wrong = (*arguments[:position], argument.reshape(-1)[:7].copy(), *arguments[position + 1 :])
                with pytest.raises(ValueError, match="not"):
                    getattr(kernel, name)(*wrong)
    with pytest.raises(ValueError, match="blocks of 1 to 256"):
        kernel.ends(np.zeros((1, 257, 1), np.float32), numbers[:1, :1].copy(), numbers[:1, :1].copy())


def test_numpy_can_be_forced() -> None:
    code = "from onnxq.weight_only import lanes; import sys; sys.stdout.write(lanes.KERNEL)"
    environment = {**os.environ, "ONNXQ_NUMPY_KERNEL": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "numpy"
