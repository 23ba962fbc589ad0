"""Kernels whose rounding errors make up for each other, without data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.deciding import decider
from onnxq.graph.values import constant_array
from onnxq.qparams import fake_quantize
from tests.models import build, normal

Feeds = list[dict[str, NDArray[np.float32]]]


def net(w: NDArray[np.float32] | None = None, text: str = "Conv <pads = [1, 1, 1, 1]> (x, w, b)") -> onnx.ModelProto:
    w = normal(16, 3, 3, 3) if w is None else w
    return build(f"(float[1, 3, 16, 16] x) => (float[1, {len(w)}, h, v] y) {{ y = {text} }}", w=w, b=normal(len(w)))


def smooth(count: int = 16, seed: int = 0) -> Feeds:
    """Pictures whose neighbouring pixels are alike: noise added up over both axes, less its mean."""
    x = np.random.default_rng(seed).standard_normal((count, 1, 3, 16, 16)).cumsum(axis=3).cumsum(axis=4)
    x -= x.mean(axis=(3, 4), keepdims=True)
    return [{"x": (sample / sample.std()).astype(np.float32)} for sample in x]


def sqnr(model: onnx.ModelProto, **options: object) -> float:
    options = {"placement": "all", "act_bits": 16, **options}
    made = onnxq.quantize(model, smooth(), options=Options(**options))  # type: ignore[arg-type]
    return onnxq.compare(model, made, smooth(24, 1), tensors=False).outputs["y"].sqnr


def weight_of(made: onnxq.Quantized) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The weight of the only layer as it is, and on its grid."""
    (site,) = [site for site in made.plan.sites if site.role == "weight"]
    found = constant_array(made.model.graph.initializers[site.tensor])
    assert found is not None
    return np.asarray(found, np.float32), fake_quantize(found, made.qparams[site.name])


@pytest.mark.parametrize("bits", [4, 8])
def test_smooth_inputs_gain_two_db(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gained = sqnr(net(), weight_bits=bits)
    monkeypatch.setattr(decider, "round_kernels", lambda *_: 0)
    assert gained > sqnr(net(), weight_bits=bits) + 2


def test_inputs_without_any_likeness_lose_little(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = [{"x": normal(1, 3, 16, 16, seed=k, scale=1.0)} for k in range(32)]

    def measured() -> float:
        made = onnxq.quantize(net(), noise, options=Options(placement="all", weight_bits=8))
        return onnxq.compare(net(), made, noise, tensors=False).outputs["y"].sqnr

    kept = measured()
    monkeypatch.setattr(decider, "round_kernels", lambda *_: 0)
    assert kept > measured() - 1.5


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("text", ["Conv (x, w, b)", "Conv <group = 3, dilations = [2, 2]> (x, w, b)"])
def test_sums_of_kernels_are_kept_on_the_grid(text: str, per_channel: bool) -> None:
    w = normal(48, 1 if "group" in text else 3, 3, 3)
    options = Options(placement="all", weight_bits=4, per_channel=per_channel)
    made = onnxq.quantize(net(w, text), smooth(), options=options)
    now, on_grid = weight_of(made)
    np.testing.assert_array_equal(now, on_grid)
    (site,) = [site for site in made.plan.sites if site.role == "weight"]
    nearest = fake_quantize(w, made.qparams[site.name])
    sums = [np.abs((rounded - w).sum(axis=(2, 3))).mean() for rounded in (now, nearest)]
    assert sums[0] < 0.8 * sums[1]


def test_zeros_stay_zeros() -> None:
    w = normal(16, 3, 3, 3)
    w[np.random.default_rng(0).random(w.shape) < 0.6] = 0.0
    now, _ = weight_of(onnxq.quantize(net(w), smooth(), options=Options(placement="all", weight_bits=4)))
    assert not now[w == 0].any() and now.any()


def test_fast_and_layers_of_one_tap_are_rounded_to_nearest() -> None:
    one = net(normal(16, 3, 1, 1), "Conv (x, w, b)")
    for model, effort in ((net(), "fast"), (one, "default")):
        made = onnxq.quantize(model, smooth(), options=Options(placement="all", effort=effort))  # type: ignore[arg-type]
        original = np.asarray(constant_array(made.model.graph.initializers["w"]))
        np.testing.assert_array_equal(original, onnx.numpy_helper.to_array(model.graph.initializer[0]))


def test_a_weight_that_two_layers_read_is_rounded_to_nearest() -> None:
    model = build(
        """(float[1, 3, 16, 16] x) => (float[1, 3, 12, 12] y) {
            a = Conv (x, w)
            y = Conv (a, w)
        }""",
        w=normal(3, 3, 3, 3),
    )
    made = onnxq.quantize(model, smooth(), options=Options(placement="all"))
    np.testing.assert_array_equal(
        np.asarray(constant_array(made.model.graph.initializers["w"])),
        onnx.numpy_helper.to_array(model.graph.initializer[0]),
    )
