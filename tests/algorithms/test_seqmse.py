"""Sequential MSE: the scales found are the best ones of the grid, for the layer's output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.algorithms.common.quantized_layer import quantized_layers
from onnxq.algorithms.layerwise.hessian import moments_of
from onnxq.algorithms.layerwise.scales import search_scales
from onnxq.errors import OptionError
from onnxq.qparams import QParams, fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerBlock, PerChannel, PerTensor, QuantSpec
from tests.algorithms.test_gptq import case, draft_of
from tests.contract import quantize_checked


@pytest.mark.parametrize("name", ["conv", "groups", "depthwise", "gemm", "matmul"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_no_candidate_is_better_on_the_output(name: str, per_channel: bool) -> None:
    draft = draft_of(*case(name), weight_bits=4, weight_symmetric=True, per_channel=per_channel)
    (layer,) = quantized_layers(draft.model, draft.plan)
    (seen,) = moments_of(draft, [layer])
    weight = layer.array()
    x = np.concatenate([layer.inputs(sample.feeds["x"]) for sample in draft.fitting], axis=2).astype(np.float64)
    old = draft.numbers[layer.site]

    def measured(qp: QParams) -> Any:
        """Error of the output for each scale."""
        change = layer.matrix(fake_quantize(weight, qp)).astype(np.float64) - layer.matrix(weight)
        error = np.square(change @ x).mean(axis=2).reshape(-1)
        return error if qp.scale.ndim else error.sum()

    found = search_scales(layer, old, layer.matrix().astype(np.float64), seen.fitting.total(), lowest=0.3, steps=40)
    least = measured(found)
    assert (least <= measured(old) * 1.001).all()
    axis = 0 if name in ("conv", "groups", "depthwise", "gemm") else 1
    others = tuple(a for a in range(weight.ndim) if a != axis) if found.scale.ndim else None
    highest = np.abs(weight).max(axis=others)
    for ratio in np.linspace(1.0, 0.3, 40):
        assert (least <= measured(from_range(-highest * ratio, highest * ratio, old.spec)) * 1.001).all()


@pytest.mark.parametrize("granularity", [PerTensor(), PerChannel(0), PerBlock(1, 4)])
def test_every_granularity_and_powers_of_two(granularity: PerTensor | PerChannel | PerBlock) -> None:
    draft = draft_of(*case("gemm"), weight_bits=4)
    (layer,) = quantized_layers(draft.model, draft.plan)
    (seen,) = moments_of(draft, [layer])
    weight = layer.array()
    highest = {
        PerTensor(): np.abs(weight).max(),
        PerChannel(0): np.abs(weight).max(axis=1),
        PerBlock(1, 4): np.abs(weight).reshape(6, 3, 4).max(axis=2),
    }[granularity]
    for power_of_two in (False, True):
        spec = QuantSpec(4, granularity=granularity, power_of_two=power_of_two)
        start = from_range(-highest, highest, spec)
        found = search_scales(layer, start, layer.matrix().astype(np.float64), seen.fitting.total())
        assert found.scale.shape == start.scale.shape
        assert (found.scale <= start.scale).all()
        if power_of_two:
            np.testing.assert_array_equal(np.log2(found.scale), np.rint(np.log2(found.scale)))
        # against the diagonal alone: plain arithmetic
        diagonal = np.diagonal(seen.fitting.total(), axis1=1, axis2=2)
        plain = search_scales(layer, start, layer.matrix().astype(np.float64), diagonal)
        before, after = (
            np.sum(np.square(fake_quantize(weight, replace(start, scale=q.scale)) - weight) * diagonal)
            for q in (start, plain)
        )
        assert after <= before


@pytest.mark.parametrize("name", ["conv", "depthwise", "gemm", "matmul"])
def test_it_helps(name: str) -> None:
    model, feeds = case(name)
    scores = []
    for algorithms in (("bias_correction",), ("seqmse", "bias_correction")):
        options = Options(
            placement="all", weight_bits=3, act_bits=16, algorithms=algorithms, format="fake-quantize", per_channel=True
        )
        scores.append(quantize_checked(model, feeds, options, least=None).worst)
    assert scores[1] > scores[0] + 0.3


@pytest.mark.parametrize("wrong", ["candidates=0", "lowest=1", "lowest=0", "steps=3"])
def test_wrong_parameters(wrong: str) -> None:
    model, feeds = case("gemm")
    with pytest.raises(OptionError, match="seqmse"):
        onnxq.quantize(model, feeds, options=Options(algorithms=(f"seqmse:{wrong}",)))
