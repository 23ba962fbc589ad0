from __future__ import annotations

import numpy as np
import pytest

from onnxq.weight_only import gptq
from onnxq.weight_only.grid import Coded, decode, empty, nearest
from onnxq.weight_only.recipe import Recipe
from tests.models import normal


def _correlated(rows: int, inputs: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).standard_normal((inputs // 4, inputs))
    x = rng.standard_normal((rows, inputs // 4)) @ mixing + 0.3 * rng.standard_normal((rows, inputs))
    x[:, 3] *= 10
    return x.astype(np.float32)


def _gptq(weight: np.ndarray, x: np.ndarray, recipe: Recipe) -> Coded:
    made = empty(recipe.spec(), *weight.shape)
    for columns in gptq.column_groups(weight.shape[1], recipe.block):
        upper = gptq.factor([x], columns)
        assert upper is not None
        gptq.round_columns(weight, upper, made, columns)
    return made


@pytest.mark.parametrize("count", [1, 7, 64, 200])
def test_factor(count: int) -> None:
    x = _correlated(500, max(count, 4))[:, :count]
    upper = gptq.factor([x[:100], x[100:]], slice(0, count))
    assert upper is not None and (np.tril(upper, -1) == 0).all()
    hessian = x.T.astype(np.float64) @ x
    hessian += gptq.damping(hessian, 500) * np.diag(hessian).mean() * np.eye(count)
    np.testing.assert_allclose(upper.T.astype(np.float64) @ upper @ hessian, np.eye(count), atol=1e-3)


def test_factor_of_useless_data() -> None:
    assert gptq.factor([np.zeros((4, 8), np.float32)], slice(0, 8)) is None
    assert gptq.factor([np.full((4, 8), np.inf, np.float32)], slice(0, 8)) is None
    some = np.zeros((4, 8), np.float32)
    some[:, :3] = normal(4, 3)
    upper = gptq.factor([some], slice(0, 8))
    assert upper is not None and np.isfinite(upper).all()  # inputs that are always zero


@pytest.mark.parametrize("power", [-100, 100])
def test_data_that_float32_cannot_square_is_learned_from_all_the_same(power: int) -> None:
    weight, x = normal(6, 300, scale=1.0), _correlated(700, 300)
    usual, scaled = _gptq(weight, x, Recipe(4, 16)), _gptq(weight, np.ldexp(x, power), Recipe(4, 16))
    np.testing.assert_allclose(usual.scale, scaled.scale, rtol=1e-4)
    assert (usual.codes == scaled.codes).mean() > 0.99


@pytest.mark.parametrize("block", [16, 128, 256])
def test_against_the_definition(block: int) -> None:
    """Optimal brain surgeon, one input after the other with the inverse taken anew each time; scales from its own."""
    weight, x = normal(6, 300, scale=1.0), _correlated(700, 300)
    made = _gptq(weight, x, Recipe(8, block))
    hessian = x.T.astype(np.float64) @ x
    hessian += gptq.damping(hessian, 700) * np.diag(hessian).mean() * np.eye(300)
    work, scale = weight.astype(np.float64), np.repeat(made.scale, block, 1)[:, :300].astype(np.float64)
    expected = np.zeros_like(work)
    inverse = np.linalg.inv(hessian)
    for i in range(300):
        expected[:, i] = np.clip(np.rint(work[:, i] / scale[:, i]), -128, 127) * scale[:, i]
        error = (work[:, i] - expected[:, i]) / inverse[0, 0]
        work[:, i:] -= np.outer(error, inverse[0])
        rest = inverse[1:, 1:] - np.outer(inverse[1:, 0], inverse[0, 1:]) / inverse[0, 0]
        inverse = rest
    same = np.abs(decode(made) - expected) < scale * 0.01
    assert same.mean() > 0.98  # float32 against float64: what lies half-way may fall on either side


@pytest.mark.parametrize("recipe", [Recipe(4, 32, True), Recipe(4, 64, False)], ids=str)
def test_better_than_nearest_on_other_data(recipe: Recipe) -> None:
    weight = normal(96, 200, scale=1.0)
    made, plain = _gptq(weight, _correlated(800, 200), recipe), nearest(weight, recipe.spec())
    fresh = _correlated(400, 200, seed=5)

    def error(coded: Coded) -> float:
        return float(np.linalg.norm(fresh @ (decode(coded) - weight).T))

    assert error(made) <= 0.8 * error(plain)


def test_few_rows_are_not_believed() -> None:
    """Inputs that have nothing to do with one another seem to in few rows; what was learned of that is worse."""
    weight = normal(96, 128, scale=1.0)
    x, fresh = (normal(rows, 128, seed=seed, scale=1.0) for rows, seed in ((160, 5), (800, 6)))
    made, plain = _gptq(weight, x, Recipe()), nearest(weight, Recipe().spec())

    def error(coded: Coded) -> float:
        return float(np.linalg.norm(fresh @ (decode(coded) - weight).T))

    assert error(made) <= 1.01 * error(plain)
    few, many = _correlated(40, 128), _correlated(4000, 128)
    assert gptq.damping(few.T.astype(np.float64) @ few, 40) > 0.1
    assert gptq.damping(many.T.astype(np.float64) @ many, 4000) == pytest.approx(0.01, abs=0.01)
    assert gptq.damping(4.0 * np.eye(3), 4) == 0.01  # nothing to move


def test_groups_never_cut_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq, "COLUMNS", 100)
    assert [(c.start, c.stop) for c in gptq.column_groups(150, 32)] == [(0, 96), (96, 150)]
    assert [(c.start, c.stop) for c in gptq.column_groups(300, 256)] == [(0, 256), (256, 300)]
    weight, x = normal(8, 150, scale=1.0), _correlated(300, 150)
    made = _gptq(weight, x, Recipe(4, 32))
    assert np.isfinite(decode(made)).all()
    assert np.linalg.norm(x @ (decode(made) - weight).T) < np.linalg.norm(
        x @ (decode(nearest(weight, made.spec)) - weight).T
    )
