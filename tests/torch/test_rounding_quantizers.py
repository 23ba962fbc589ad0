"""AdaRound, QDrop and the logarithmic grid: values by their formulas, gradients by differences."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.errors import OptionError
from onnxq.grids import logarithmic
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerChannel, QuantSpec, Scheme

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch import rounding_beta, rounding_loss
from onnxq.torch.observers import MinMax
from onnxq.torch.quantizers import quantizer_named
from onnxq.torch.quantizers.adaround import AdaRound
from onnxq.torch.quantizers.logarithmic import Logarithmic, logarithmic_grid
from onnxq.torch.quantizers.qdrop import QDrop

torch.set_num_threads(1)

ROWS = QuantSpec(4, narrow_range=True, granularity=PerChannel(0))
UNSIGNED = QuantSpec(4, signed=False, symmetric=False)
LOGARITHMIC = QuantSpec(scheme=Scheme.LOGARITHMIC)


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# -- AdaRound


def adaround(weight: torch.Tensor, *, shrink: float = 0.8) -> AdaRound:
    made = AdaRound(ROWS, 3, weight=True, observer=MinMax(), shape=tuple(weight.shape))
    array = weight.numpy()
    made.start_weight(from_range(array.min(1) * shrink, array.max(1) * shrink, ROWS), weight)
    return made


def test_adaround_starts_from_the_weight_and_ends_at_its_rounding() -> None:
    weight = values(3, 40)
    made = adaround(weight)
    scale = made.qparams().scale[:, None]
    soft = made.train()(weight).detach().numpy()
    np.testing.assert_allclose(soft, np.clip(weight.numpy(), -7 * scale, 7 * scale), atol=1e-5)
    np.testing.assert_array_equal(made.eval()(weight).numpy(), fake_quantize(weight.numpy(), made.qparams()))


def test_adaround_is_the_papers_formula() -> None:
    """Equations 21 to 23, and the regularizer, equation 24."""
    weight = values(3, 40)
    made = adaround(weight)
    with torch.no_grad():
        made.v.copy_(values(3, 40).flip(0) * 4)
    v = made.v.detach().numpy().astype(np.float64)
    scale = made.qparams().scale[:, None].astype(np.float64)
    h = np.clip(1.2 / (1 + np.exp(-v)) - 0.1, 0, 1)
    assert (h == 0).any() and (h == 1).any()
    want = scale * np.clip(np.floor(weight.numpy() / scale) + h, -7, 7)
    np.testing.assert_allclose(made.train()(weight).detach().numpy(), want, rtol=1e-5, atol=1e-6)
    hard = scale * np.clip(np.floor(weight.numpy() / scale) + (v >= 0), -7, 7)
    np.testing.assert_allclose(made.eval()(weight).numpy(), hard, rtol=1e-6)
    np.testing.assert_allclose(
        rounding_loss(made, 3.5).detach().numpy(), (1 - np.abs(2 * h - 1) ** 3.5).sum(), rtol=1e-5
    )


def test_adaround_gradients_are_differences() -> None:
    weight = values(3, 8)
    made = adaround(weight).double().train()
    at = (values(3, 8).flip(1) * 1.5).double()

    def of(v: torch.Tensor, beta: float | None) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(
            _Probe(made, beta), {"part.v": v}, (weight.double(),), strict=False
        )
        return found

    for beta in (None, 4.0):
        v = at.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda v, beta=beta: of(v, beta), (v,), eps=1e-6, atol=1e-7)
    x = values(3, 8).requires_grad_()
    made.float()(x).sum().backward()
    assert x.grad is None, "the weight itself is not trained"


class _Probe(torch.nn.Module):
    def __init__(self, part: AdaRound, beta: float | None) -> None:
        super().__init__()
        self.part, self.beta = part, beta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.quantize(x) if self.beta is None else self.part.regularizer(self.beta)


def test_learned_rounding_is_better_than_the_nearest() -> None:
    """What a layer gives, its inputs going together, is nearer to the float layer than with weights rounded alone."""
    weight = values(3, 24) * 0.5
    x = values(24, 4) @ values(4, 200).flip(1) + 0.1 * values(24, 200)
    made = adaround(weight, shrink=1.0).train()
    adam = torch.optim.Adam([made.v], lr=0.1)
    for step in range(400):
        loss = ((made(weight) - weight) @ x).square().mean()
        loss = loss + 0.003 * rounding_loss(made, rounding_beta(step, 400))
        adam.zero_grad()
        loss.backward()
        adam.step()
    up = made.up().detach()
    assert ((up < 0.05) | (up > 0.95)).float().mean() > 0.9, "every weight is rounded one way or the other"
    nearest = torch.from_numpy(fake_quantize(weight.numpy(), made.qparams()))
    with torch.no_grad():
        before, after = (((w - weight) @ x).square().mean() for w in (nearest, made.eval()(weight)))
    assert float(after) < 0.5 * float(before)


def test_the_exponent_falls_from_20_to_2() -> None:
    assert [rounding_beta(s, 100) for s in (0, 20, 60, 100)] == pytest.approx([20, 20, 11, 2])
    with pytest.raises(OptionError, match="no AdaRound"):
        rounding_loss(torch.nn.Linear(2, 2), 2.0)


# -- QDrop


def qdrop(drop: float = 0.5) -> QDrop:
    made = QDrop(UNSIGNED, 1, weight=False, observer=MinMax(), drop=drop)
    made.start(from_range(-0.8, 1.3, UNSIGNED))
    return made


def test_qdrop_leaves_a_share_of_the_values_as_they_are() -> None:
    made, x = qdrop(0.3).train(), values(20000)
    torch.manual_seed(0)
    with torch.no_grad():
        found = made(x)
    on_grid = torch.from_numpy(fake_quantize(x.numpy(), made.qparams()))
    left = found == x
    assert torch.equal(found[~left], on_grid[~left])
    assert 0.28 < float(left.float().mean()) < 0.32
    with torch.no_grad():
        assert torch.equal(made.eval()(x), on_grid), "in evaluation all are quantized"
        assert torch.equal(qdrop(0.0).train()(x), on_grid) and torch.equal(qdrop(1.0).train()(x), x)


def test_qdrop_gradients() -> None:
    """A value left out has the gradient of the identity; the others those of LSQ, equation 3."""
    made, x, grad = qdrop().train(), values(400).requires_grad_(), values(400).flip(0)
    torch.manual_seed(1)
    found = made(x)
    (found * grad).sum().backward()
    torch.manual_seed(1)
    kept = (torch.rand_like(x) >= 0.5).numpy()
    assert np.array_equal(found.detach().numpy()[~kept], x.detach().numpy()[~kept])
    qp = made.qparams()
    ratio = x.detach().numpy().astype(np.float64) / float(qp.scale)
    low, high = UNSIGNED.qmin - int(qp.zero_point), UNSIGNED.qmax - int(qp.zero_point)
    inside = (np.rint(ratio) >= low) & (np.rint(ratio) <= high)
    outside = np.where(ratio > high, UNSIGNED.qmax - UNSIGNED.qmin, 0)  # LSQ+, equation 6: counted from the lowest
    slope = np.where(inside, np.rint(ratio) - ratio, outside) * kept
    g = grad.numpy().astype(np.float64)
    scale, offset = made.get_parameter("scale").grad, made.get_parameter("offset").grad
    assert x.grad is not None and scale is not None and offset is not None
    np.testing.assert_allclose(x.grad.numpy(), g * (inside | ~kept), rtol=1e-6)
    factor = 1 / np.sqrt(400 * UNSIGNED.qmax)
    assert float(scale) == pytest.approx(factor * (g * slope).sum(), rel=1e-4)
    assert float(offset) == pytest.approx(factor * (g * kept * ~inside).sum(), rel=1e-4)


# -- logarithmic


@pytest.mark.parametrize("n", [*range(-8, 9), -500, -127, 100, logarithmic.LOWEST, logarithmic.HIGHEST])
def test_the_logarithmic_grid_bit_for_bit(n: int) -> None:
    clip = np.float32(logarithmic.clip_value(n))
    x = (np.random.default_rng(n % 97).uniform(-1, 1, 3000) * float(clip)).astype(np.float32)
    numbers = logarithmic.dequantize(np.arange(256), clip)
    borders = (numbers[:-1].astype(np.float64) + numbers[1:]) / 2
    beyond = np.array([-3e38, 0, 3e38], np.float32)
    x = np.concatenate([x, numbers, borders.astype(np.float32), x * np.float32(1e-3), beyond])
    want = logarithmic.dequantize(logarithmic.quantize(x, clip), clip)
    got = logarithmic_grid(torch.from_numpy(x), torch.tensor(float(clip))).numpy()
    np.testing.assert_array_equal(got, want)


def test_logarithmic_gradients_pass_inside_and_stop_beyond_the_clip_value() -> None:
    made = Logarithmic(LOGARITHMIC, 1, weight=False, observer=MinMax()).eval()
    made.start(from_range(-1.0, 1.0, LOGARITHMIC))
    x = torch.tensor([-9.0, -1.01, -0.3, -1e-9, 0.0, 1e-6, 0.7, 1.0, 1.02, 1.03, 50.0], requires_grad=True)
    made(x).sum().backward()
    assert x.grad is not None
    # 1.02 is nearer to 1 than to 2**(1/16) on the logarithmic scale, 1.03 is not
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    with torch.no_grad():
        for point, slope in ((5.0, 0.0), (-3.0, 0.0)):  # beyond it a difference is exact: nothing changes
            ends = made(torch.tensor([point - 0.5, point + 0.5]))
            assert float(ends[1] - ends[0]) == slope
        ends = made(torch.tensor([-0.9, 0.9]))
    assert float(ends[1] - ends[0]) / 1.8 == pytest.approx(1.0, abs=0.03), "inside, the mean slope is 1"


def test_the_clip_value_follows_the_range_in_training_both_ways() -> None:
    made = Logarithmic(LOGARITHMIC, 1, weight=True, observer=MinMax()).train()
    made.start(from_range(-1.0, 1.0, LOGARITHMIC))
    for size in (0.1, 3.0, 0.5):
        made(torch.tensor([size, -size / 2]))
        assert float(made.qparams().scale) == np.float32(2.0 ** (round(16 * np.log2(size)) / 16))


# -- names


@pytest.mark.parametrize(
    ("text", "weight", "shape", "message"),
    [
        ("adaround", False, (3, 4), "for weights"),
        ("adaround", True, None, "the shape"),
        ("qdrop", True, (3, 4), "for activations"),
        ("qdrop:drop=1.5", False, None, "not between 0 and 1"),
        ("qdrop:prob=0.5", False, None, "has no parameter 'prob'"),
        ("brecq", True, None, "no quantizer 'brecq'"),
    ],
)
def test_what_makes_no_sense_is_said(text: str, weight: bool, shape: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        quantizer_named(text)(UNSIGNED, 1, weight=weight, observer=MinMax(), shape=shape)
