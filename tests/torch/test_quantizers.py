"""Forward values equal the project's arithmetic bit for bit; gradients equal the papers' formulas or differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerChannel, QuantSpec

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch.observers import EMAMinMax, MinMax
from onnxq.torch.quantizers import QUANTIZERS, Quantizer, quantizer_named

torch.set_num_threads(1)

SIGNED = QuantSpec(4)
NARROW = QuantSpec(4, narrow_range=True, granularity=PerChannel(0))
UNSIGNED = QuantSpec(4, signed=False, symmetric=False)
POWER = QuantSpec(5, power_of_two=True)


def made(kind: str, spec: QuantSpec, low: float = -1.0, high: float = 1.5, *, weight: bool = False) -> Quantizer:
    channels = 3 if isinstance(spec.granularity, PerChannel) else 1
    quantizer = quantizer_named(kind)(spec, channels, weight=weight, observer=MinMax())
    size = np.array([1.0, 0.5, 2.0]) if channels == 3 else np.array(1.0)
    quantizer.start(from_range(low * size, high * size, spec))
    return quantizer.eval()


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spec", [SIGNED, NARROW, UNSIGNED, POWER], ids=str)
@pytest.mark.parametrize("kind", ["lsq", "fixed", "ema", "dsq", "tqt", "pact"])
def test_values_are_those_of_the_arithmetic(kind: str, spec: QuantSpec) -> None:
    if (kind == "pact" and spec is NARROW) or (kind == "tqt" and spec is not POWER):
        return
    quantizer, x = made(kind, spec), values(3, 4, 50)
    scale = float(quantizer.qparams().scale.reshape(-1)[0])
    x[0, 0] = (torch.arange(50) - 25 + 0.5) * scale
    want = fake_quantize(x.numpy(), quantizer.qparams())
    np.testing.assert_array_equal(quantizer(x).detach().numpy().view(np.int32), want.view(np.int32))


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("spec", [SIGNED, NARROW, UNSIGNED], ids=str)
def test_lsq_gradients(spec: QuantSpec, weight: bool) -> None:
    """Esser et al. 2020, equation 3 and section 2.2; Bhalgat et al. 2020, equations 6 and 7, with an offset."""
    quantizer, x = made("lsq", spec, weight=weight), values(3, 4, 50).requires_grad_()
    grad = values(3, 4, 50) * 2
    (quantizer(x) * grad).sum().backward()
    qp = quantizer.qparams()
    s, z = (a.reshape(-1, *[1, 1] * bool(a.ndim)).astype(np.float64) for a in (qp.scale, qp.zero_point))
    ratio = x.detach().numpy().astype(np.float64) / s
    low, high = spec.qmin - z, spec.qmax - z
    inside = (np.rint(ratio) >= low) & (np.rint(ratio) <= high)
    ends = np.clip(ratio, low, high) if spec.symmetric else np.where(ratio > high, spec.qmax - spec.qmin, 0)
    slope = np.where(inside, np.rint(ratio) - ratio, ends)
    g = grad.numpy().astype(np.float64)
    count = x.numel() / qp.scale.size / (1 if weight else 3)
    factor = 1 / math.sqrt(count * spec.qmax)
    axes = (1, 2) if qp.scale.ndim else (0, 1, 2)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), g * inside, rtol=1e-6)
    scale = quantizer.get_parameter("scale").grad
    assert scale is not None
    np.testing.assert_allclose(scale.numpy(), factor * (g * slope).sum(axes), rtol=1e-4, atol=1e-6)
    if not spec.symmetric:
        offset = quantizer.get_parameter("offset").grad
        assert offset is not None
        np.testing.assert_allclose(offset.numpy(), factor * (g * ~inside).sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scaling", [0, 1])
@pytest.mark.parametrize("name", ["scale", "offset"])
def test_lsq_gradients_outside_the_grid_are_finite_differences(name: str, scaling: int) -> None:
    """There nothing is rounded but the zero point: over steps of whole codes the output is a line."""
    quantizer = made(f"lsq:grad_scaling={scaling}", UNSIGNED)
    x = torch.tensor([-50.0, 60.0, 70.0])
    learned, scale = quantizer.get_parameter(name), float(quantizer.qparams().scale)
    quantizer(x).sum().backward()
    assert learned.grad is not None
    with torch.no_grad():
        before = quantizer(x).sum()
        zero = int(quantizer.qparams().zero_point)
        step = scale if name == "offset" else scale * (zero / (zero - 1) - 1)  # one code less
        learned.add_(step)
        assert int(quantizer.qparams().zero_point) == zero - 1
        slope = float((quantizer(x).sum() - before) / step)
    factor = math.sqrt(3 * UNSIGNED.qmax) if scaling else 1.0
    assert float(learned.grad) * factor == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("spec", [SIGNED, NARROW, UNSIGNED], ids=str)
def test_gradients_of_gradients(spec: QuantSpec) -> None:
    """As a gradient penalty takes them: inside the grid the quantizer passes gradients on, and so do those."""
    quantizer, x, c = made("lsq", spec), values(3, 4, 50).requires_grad_(), values(3, 4, 50) * 3
    y = quantizer(x)
    (inside,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (slope,) = torch.autograd.grad(y.square().sum() / 2, x, create_graph=True)
    torch.testing.assert_close(slope, y * inside, rtol=0, atol=0)
    learned = [x, *quantizer.parameters()]
    second = torch.autograd.grad((slope * c).sum(), learned)
    first = torch.autograd.grad((quantizer(x) * c * inside).sum(), learned)
    assert float(second[0].abs().max()) > 0
    torch.testing.assert_close(second, first)


def test_a_learned_offset_finds_the_low_end() -> None:
    """Values from -1 on, the grid begins at -0.3: Adam gets there, and what is computed is what is written."""
    spec = QuantSpec(4, signed=False, symmetric=False)
    quantizer = quantizer_named("lsq")(spec, 1, weight=False, observer=MinMax())
    quantizer.start(from_range(-0.3, 1.2, spec))
    x = values(8, 200).clamp(-1.0, 1.0)
    adam = torch.optim.Adam(quantizer.parameters(), lr=3e-3)
    first = last = 0.0
    for _ in range(300):
        loss = (quantizer(x) - x).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        first, last = first or float(loss.detach()), float(loss.detach())
    qp = quantizer.qparams()
    assert last < 0.1 * first and -1.1 < float(qp.lo) < -0.75
    with torch.no_grad():
        np.testing.assert_array_equal(quantizer(x).numpy(), fake_quantize(x.numpy(), qp))


def test_a_zero_point_stays_on_the_grid_and_comes_back() -> None:
    quantizer = made("lsq", UNSIGNED)
    offset = quantizer.get_parameter("offset")
    with torch.no_grad():
        offset.fill_(0.5)
    assert int(quantizer.qparams().zero_point) == UNSIGNED.qmin
    x = torch.full((4,), -50.0)
    for sign, moves in ((1.0, True), (-1.0, False)):  # downwards, back to the grid, and further away
        offset.grad = None
        (sign * quantizer(x)).sum().backward()
        assert offset.grad is not None and bool(offset.grad > 0) is moves
        assert moves or float(offset.grad) == 0


def test_gradients_are_finite_where_the_offset_is_far_beyond_the_grid() -> None:
    """A step of Adam may be 1e20 times as large as the scale of a net that was never trained."""
    quantizer = quantizer_named("lsq")(UNSIGNED, 1, weight=False, observer=MinMax())
    quantizer.start(from_range(-1e-27, 2e-27, UNSIGNED))
    for size in (-1e-5, 1e-5):
        with torch.no_grad():
            quantizer.get_parameter("offset").fill_(size)
        quantizer(values(3, 4, 50)).square().sum().backward()
        for parameter in quantizer.parameters():
            assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all())


def test_a_scale_stays_above_a_share_of_the_calibrated_one() -> None:
    quantizer = made("lsq", SIGNED)
    scale, before = quantizer.get_parameter("scale"), quantizer.qparams().scale.copy()
    with torch.no_grad():
        scale.fill_(-0.7)
    np.testing.assert_allclose(quantizer.qparams().scale, 0.05 * before, rtol=1e-6)
    x = values(3, 4, 50)
    (quantizer(x) - x).square().sum().backward()
    assert scale.grad is not None and bool((scale.grad < 0).all()), "clipped values pull it back up"
    scale.grad = None
    (quantizer(x) + x).square().sum().backward()
    assert scale.grad is not None and bool((scale.grad == 0).all()), "nothing pulls it further down"


def test_a_checkpoint_with_a_zero_point_becomes_one_with_an_offset() -> None:
    quantizer = made("lsq", UNSIGNED)
    state = {n: t.clone() for n, t in quantizer.state_dict().items() if n not in ("floor", "offset")}
    state |= {"scale": torch.tensor(-0.25), "zero_point": torch.tensor(5.3)}
    quantizer.load_state_dict(state)
    qp = quantizer.qparams()
    assert float(qp.scale) == 0.25 and int(qp.zero_point) == 5


@pytest.mark.parametrize("spec", [SIGNED, UNSIGNED], ids=str)
def test_pact_gradients(spec: QuantSpec) -> None:
    """Choi et al. 2018, equation 3: a level gets the gradient of all that it clips."""
    quantizer = made("pact", spec)
    upper, lower = (quantizer.get_parameter(n).item() for n in ("upper", "lower"))
    lower = -upper if spec.symmetric else lower
    x, grad = (values(200) * 1.5).requires_grad_(), values(200) + 0.3
    (quantizer(x) * grad).sum().backward()
    above, below = x.detach() >= upper, x.detach() <= lower
    assert above.any() and below.any() and x.grad is not None
    assert torch.allclose(x.grad, grad * ~(above | below))
    got = quantizer.get_parameter("upper").grad
    want = (grad * above).sum() - ((grad * below).sum() if spec.symmetric else 0.0)
    assert got is not None and float(got) == pytest.approx(float(want), rel=1e-4)
    if not spec.symmetric:
        got = quantizer.get_parameter("lower").grad
        assert got is not None and float(got) == pytest.approx(float((grad * below).sum()), rel=1e-4)


def test_pact_on_powers_of_two() -> None:
    """The grid is the next one that holds the level; what lies between the two is not clipped, and trains on."""
    quantizer = made("pact", POWER)
    with torch.no_grad():
        quantizer.get_parameter("upper").fill_(15 * 0.15)
    assert float(quantizer.qparams().scale) == 0.25
    x = torch.tensor([-5.0, -2.0, 0.3, 3.0, 5.0], requires_grad=True)
    got = quantizer(x)
    assert got.tolist() == [-4.0, -2.0, 0.25, 3.0, 3.75]
    got.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 1, 1, 1, 0]
    grad = quantizer.get_parameter("upper").grad
    assert grad is not None and float(grad) == 0.0, "one clipped above, one below"


@pytest.mark.parametrize("alpha", [0.2, 0.4])
def test_dsq_gradient_is_the_slope_of_its_staircase(alpha: float) -> None:
    """Gong et al. 2019, equations 3 to 6, by differences of the staircase itself, in float64."""
    quantizer = made(f"dsq:alpha={alpha}", UNSIGNED)
    qp = quantizer.qparams()
    scale, zero = float(qp.scale), int(qp.zero_point)
    x = torch.linspace(-0.99, 1.4, 101).requires_grad_()
    quantizer(x).sum().backward()
    steep = math.log(2 / alpha - 1)

    def staircase(v: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        whole = np.floor(v / scale)
        soft = np.tanh(steep * (v / scale - whole - 0.5)) / (1 - alpha)
        return scale * (whole + 0.5 * (soft + 1))

    points = x.detach().numpy().astype(np.float64)
    near = np.abs(points / scale - np.rint(points / scale)) < 1e-3  # where two steps meet
    inside = (points >= (0 - zero) * scale) & (points <= (15 - zero) * scale)
    want = (staircase(points + 1e-6) - staircase(points - 1e-6)) / 2e-6
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy()[~near], (want * inside)[~near], rtol=1e-3)


def test_tqt_gradient_is_that_of_the_scale_times_s_ln_2() -> None:
    """Jain et al. 2020, equation 7."""
    quantizer, x = made("tqt", POWER), values(400)
    scale = float(quantizer.qparams().scale)
    assert math.log2(scale).is_integer()
    quantizer(x).sum().backward()
    ratio = x.numpy().astype(np.float64) / scale
    inside = (np.rint(ratio) >= -16) & (np.rint(ratio) <= 15)
    slope = np.where(inside, np.rint(ratio) - ratio, np.clip(ratio, -16, 15))
    got = quantizer.get_parameter("exponent").grad
    assert got is not None and float(got) == pytest.approx(scale * math.log(2) * slope.sum(), rel=1e-4)


def test_dorefa_squashes_by_tanh() -> None:
    """Zhou et al. 2016, equation 9, at the size of the weight; the gradient by differences of what is in front of the
    rounding."""
    quantizer = QUANTIZERS["dorefa"](NARROW, 3, weight=True, observer=MinMax())
    w = values(3, 20)
    quantizer.watching = True
    quantizer(w)
    quantizer.watching = False
    quantizer.settle("w")
    quantizer.eval()
    size = float(w.abs().max())
    squashed = torch.tanh(w / size) / torch.tanh(w / size).abs().max() * size
    want = fake_quantize(squashed.numpy(), quantizer.qparams())
    np.testing.assert_allclose(quantizer(w).numpy(), want, atol=1e-6)
    x = w.double().requires_grad_()
    assert torch.autograd.gradcheck(quantizer.grid_input, (x,))


def test_ema_follows_the_range_in_training_only() -> None:
    quantizer = QUANTIZERS["ema"](UNSIGNED, 1, weight=False, observer=EMAMinMax())
    x = torch.rand(100, generator=torch.Generator().manual_seed(0))
    quantizer.watching = True
    quantizer(x)
    quantizer.watching = False
    quantizer.settle("x")
    first = float(quantizer.qparams().scale)
    quantizer.eval()(x * 10)
    assert float(quantizer.qparams().scale) == first
    quantizer.train()(x * 10)
    high = float(x.max()) * (0.9 + 0.1 * 10)
    assert float(quantizer.qparams().scale) == pytest.approx(high / 15, rel=1e-5)


@pytest.mark.parametrize("kind", ["ema", "dsq", "fixed"])
def test_a_quantizer_that_follows_the_values_may_be_called_twice(kind: str) -> None:
    """Its scale is overwritten before the gradient of the first call is asked for."""
    quantizer, x = made(kind, UNSIGNED).train(), values(40).requires_grad_()
    (quantizer(x) + quantizer(x * 2)).sum().backward()
    assert x.grad is not None and bool(torch.isfinite(x.grad).all()) and float(x.grad.abs().max()) > 0


def test_dorefa_leaves_a_weight_of_zeros() -> None:
    quantizer = QUANTIZERS["dorefa"](NARROW, 3, weight=True, observer=MinMax())
    w = torch.zeros(3, 20, requires_grad=True)
    quantizer.watching = True
    quantizer(w)
    quantizer.watching = False
    quantizer.settle("w")
    quantizer.train()
    y = quantizer(w)
    y.sum().backward()
    assert not y.detach().any() and w.grad is not None and torch.equal(w.grad, torch.ones(3, 20))
    quantizer.get_buffer("size").fill_(1.0)  # one that became zero
    assert not quantizer(torch.zeros(3, 20)).any()
