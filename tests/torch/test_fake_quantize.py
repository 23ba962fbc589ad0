"""Fake-quantization in torch equals that of the arithmetic, bit for bit; its gradients are those of the papers."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.qparams import QParams, fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerBlock, PerChannel, QuantSpec
from tests.models import f32, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch.fake_quantize import Grid
from onnxq.torch.fake_quantize import fake_quantize as learnable
from onnxq.torch.weights import ActivationGrid, FreeWeight, RoundedWeight

SPECS = [
    QuantSpec(8),
    QuantSpec(8, signed=False, symmetric=False),
    QuantSpec(4, narrow_range=True),
    QuantSpec(16, symmetric=False),
    QuantSpec(3, granularity=PerChannel(1)),
    QuantSpec(8, signed=False, symmetric=False, granularity=PerChannel(0)),
    QuantSpec(4, granularity=PerBlock(1, 3)),
    QuantSpec(5, power_of_two=True),
]


def numbers_for(spec: QuantSpec, x: np.ndarray) -> QParams:  # type: ignore[type-arg]
    granularity = spec.granularity
    if isinstance(granularity, PerChannel):
        axes = tuple(a for a in range(x.ndim) if a != granularity.axis)
        return from_range(x.min(axes) * 0.8, x.max(axes) * 0.7, spec)
    if isinstance(granularity, PerBlock):
        starts = np.arange(0, x.shape[granularity.axis], granularity.size)
        low = np.minimum.reduceat(x, starts, granularity.axis)
        return from_range(low * 0.8, np.maximum.reduceat(x, starts, granularity.axis) * 0.7, spec)
    return from_range(x.min() * 0.8, x.max() * 0.7, spec)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_equals_the_arithmetic_bit_for_bit(spec: QuantSpec) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((64, 7, 30)) * 3).astype(np.float32)
    qp = numbers_for(spec, x)
    scale = float(qp.scale.reshape(-1)[0])
    x[0, 0] = (np.arange(30) - 15 + 0.5) * scale  # ties
    x[0, 1, :4] = [np.nan, np.inf, -np.inf, -1e-30]
    got = learnable(torch.from_numpy(x), Grid.of(qp, x.shape)).numpy()
    np.testing.assert_array_equal(got.view(np.int32), fake_quantize(x, qp).view(np.int32))


def test_gradients() -> None:
    qp = QParams(QuantSpec(3), f32(0.5), np.array(0, np.int64))  # -2 to 1.5
    x = torch.tensor([-3.0, -0.6, 0.1, 0.4, 1.4, 9.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (learnable(x, Grid.of(qp, (6,)), scale) * weights).sum().backward()
    assert x.grad is not None and scale.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [0, 2, 3, 4, 5, 0])
    # round(x / s) - x / s inside, the end of the grid outside
    slopes = [-4, -1 + 1.2, 0 - 0.2, 1 - 0.8, 3 - 2.8, 3]
    np.testing.assert_allclose(scale.grad.item(), np.dot(slopes, weights.numpy()), rtol=1e-5)


def test_gradient_of_scales_of_channels() -> None:
    spec = QuantSpec(4, granularity=PerChannel(0))
    x = torch.from_numpy(normal(3, 50, scale=1.0))
    qp = numbers_for(spec, x.numpy())
    grid = Grid.of(qp, (3, 50))
    scale = grid.scale.clone().requires_grad_()
    learnable(x, grid, scale).square().sum().backward()
    for channel in range(3):
        one = QParams(QuantSpec(4), qp.scale[channel], qp.zero_point[channel])
        alone = torch.tensor(float(qp.scale[channel]), requires_grad=True)
        learnable(x[channel], Grid.of(one, (50,)), alone).square().sum().backward()
        assert scale.grad is not None and alone.grad is not None
        np.testing.assert_allclose(scale.grad[channel].item(), alone.grad.item(), rtol=1e-4)


@pytest.mark.parametrize("made", [RoundedWeight, FreeWeight])
@pytest.mark.parametrize("spec", SPECS[4:7], ids=str)
def test_weights_begin_at_the_nearest_rounding(made: type, spec: QuantSpec) -> None:
    weight = normal(6, 9, 4, scale=1.0)
    qp = numbers_for(spec, weight)
    learned = made(weight, qp)
    result, numbers = learned.result()
    np.testing.assert_array_equal(result, fake_quantize(weight, qp))
    assert numbers == qp
    np.testing.assert_array_equal(fake_quantize(result, numbers), result)


@pytest.mark.parametrize("spec", SPECS[4:7], ids=str)
def test_soft_rounding_begins_beside_the_rounding_that_a_weight_has(spec: QuantSpec) -> None:
    """Whatever found it: each code here is the nearest or the second nearest, or two away."""
    weight = normal(6, 9, 4, scale=1.0)
    qp = numbers_for(spec, weight)
    moved = np.random.default_rng(0).integers(-2, 3, weight.shape) * np.float32(qp.scale.min())
    rounded = fake_quantize(weight + moved.astype(np.float32), qp)
    learned = RoundedWeight(weight, qp, rounded)
    np.testing.assert_array_equal(learned.result()[0], rounded)
    assert (np.abs(learned.value().detach().numpy() - rounded) <= 0.26 * qp.scale.max()).all()


def test_soft_rounding_begins_at_the_weight_itself() -> None:
    weight = normal(6, 9, scale=1.0)
    qp = from_range(-10.0, 10.0, QuantSpec(4))
    np.testing.assert_allclose(RoundedWeight(weight, qp).value().detach().numpy(), weight, atol=1e-5)


def test_learned_scales() -> None:
    qp = from_range(0.0, 2.0, QuantSpec(8, signed=False, symmetric=False))
    grid = ActivationGrid(qp, learn=True)
    assert grid.stretch is not None
    with torch.no_grad():
        grid.stretch.fill_(float(np.log(1.5)))
    x = normal(40, scale=1.0)
    np.testing.assert_allclose(grid.result().scale, qp.scale * 1.5, rtol=1e-6)
    np.testing.assert_allclose(grid(torch.from_numpy(x)).detach().numpy(), fake_quantize(x, grid.result()), atol=1e-6)
    assert ActivationGrid(from_range(0, 2, QuantSpec(power_of_two=True)), learn=True).stretch is None


def test_a_share_of_the_values_is_not_quantized() -> None:
    grid = ActivationGrid(from_range(-1.0, 1.0, QuantSpec(2)))
    x = torch.from_numpy(normal(10_000, scale=0.3))
    grid.drop, grid.generator = 0.3, torch.Generator().manual_seed(0)
    left = float((grid(x) == x).float().mean())
    assert 0.28 < left < 0.32
    grid.drop = 0.0
    np.testing.assert_array_equal(grid(x).numpy(), fake_quantize(x.numpy(), grid.qp))
