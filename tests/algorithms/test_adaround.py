"""AdaRound on second moments: every weight goes up or down, and all together better than to nearest."""

from __future__ import annotations

import itertools

import numpy as np
import onnx.numpy_helper
import pytest

import onnxq
from onnxq import Options
from onnxq.algorithms.common.quantized_layer import quantized_layers
from onnxq.algorithms.layerwise.rounding import descend, errors
from onnxq.errors import OptionError
from onnxq.qparams import fake_quantize
from tests.algorithms.test_gptq import LAYERS, case, random_problem
from tests.contract import quantize_checked


@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_rounded_up_or_down_and_the_output_comes_closer(name: str) -> None:
    model, feeds = case(name)
    scores = []
    for algorithm in ("bias_correction", "adaround"):
        options = Options(
            placement="all", weight_bits=4, act_bits=16, algorithms=(algorithm,), format="fake-quantize", effort="fast"
        )  # fast: what is compared with is rounded to nearest
        outcome = quantize_checked(model, feeds, options, least=None)
        scores.append(outcome.worst)
    assert scores[1] > scores[0] + 1
    (layer,) = quantized_layers(outcome.quantized.model, outcome.quantized.plan, stored=True)
    qp = outcome.quantized.qparams[layer.site]
    scale, zero = layer.rows(qp)
    steps = layer.matrix() / scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    original = layer.matrix(onnx.numpy_helper.to_array(model.graph.initializer[0])) / scale
    inside = (original > qp.spec.qmin - zero) & (original < qp.spec.qmax - zero)
    assert (np.abs(steps - original)[inside] < 1.001).all()
    np.testing.assert_array_equal(fake_quantize(layer.array(), qp), layer.array())


def test_it_is_close_to_the_best_of_all_roundings() -> None:
    weight, hessian, grid = random_problem(inputs=9, groups=3, outputs=2)
    low = np.clip(np.floor(weight / grid.scale), -8, 7) * grid.scale
    high = np.clip(np.floor(weight / grid.scale) + 1, -8, 7) * grid.scale
    nearest = grid.nearest(weight)
    found = errors(descend(weight, nearest, hessian, grid, sweeps=50, low=low, high=high) - weight, hessian)
    best = np.full(found.shape, np.inf)
    for ups in itertools.product((False, True), repeat=9):
        best = np.minimum(best, errors(np.where(ups, high, low) - weight, hessian))
    plain = errors(nearest - weight, hessian)
    assert (found >= best * (1 - 1e-9)).all()
    assert (found <= plain).all()
    assert (found - best).sum() < 0.35 * (plain - best).sum()


@pytest.mark.parametrize("wrong", ["method=magic", "damping=-1", "sweeps=0", "steps=3"])
def test_wrong_parameters(wrong: str) -> None:
    model, feeds = case("gemm")
    with pytest.raises(OptionError, match="adaround"):
        onnxq.quantize(model, feeds, options=Options(algorithms=(f"adaround:{wrong}",)))
