"""Weights of a reduced range: what onnxruntime's kernels give with them, on this processor whatever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import OptionError, Options
from onnxq.calibration.reduced import least_scale
from onnxq.ort.overflow import products_overflow
from onnxq.spec import PerChannel, PerTensor, QuantSpec
from tests.models import build, normal
from tests.running import open_session

REDUCED = Options(placement="all", reduce_range=True)
WEIGHTS = {
    "1x1": ("Conv (x, w)", normal(24, 16, 1, 1)),
    "3x3": ("Conv (x, w)", normal(24, 16, 3, 3)),
    "odd channels": ("Conv (x, w)", normal(24, 16, 3, 3)[:, :15]),
    "groups": ("Conv <group = 4> (x, w)", normal(24, 4, 3, 3)),
    "few channels of groups": ("Conv <group = 8> (x, w)", normal(16, 2, 3, 3)),
    "one row": ("Conv (x, w)", normal(24, 16, 1, 5)),
}


def _extreme(channels: int) -> list[dict[str, Any]]:
    """Pictures of which half the pixels have the largest number there is, where products overflow if any do."""
    rng = np.random.default_rng(0)
    return [{"x": np.where(rng.random((1, channels, 10, 10)) < 0.5, 1.0, 0.1).astype(np.float32)} for _ in range(6)]


def _runs(q: onnxq.Quantized, feeds: dict[str, Any]) -> list[NDArray[Any]]:
    """Outputs without graph optimizations and with all of them."""
    return [open_session(_proto(q), optimize=optimize).run(None, feeds)[0] for optimize in (False, True)]


def _proto(q: onnxq.Quantized) -> onnx.ModelProto:
    return ir.serde.serialize_model(q.rendered())


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", WEIGHTS)
def test_no_sum_of_a_convolution_overflows(name: str, per_channel: bool) -> None:
    text, weight = WEIGHTS[name]
    groups = 4 if name == "groups" else 8 if name == "few channels of groups" else 1
    channels = weight.shape[1] * groups
    model = build(f"(float[1, {channels}, 10, 10] x) => (float[1, {len(weight)}, a, b] y) {{ y = {text} }}", w=weight)
    feeds = _extreme(channels)
    options = Options(placement="all", per_channel=per_channel, reduce_range=True, bias_correction=False)
    q = onnxq.quantize(model, feeds, options=options)
    plain, optimized = _runs(q, feeds[0])
    step = float(q.qparams["y"].scale)
    assert np.abs(plain - optimized).max() <= 1.01 * step
    full = onnxq.quantize(model, feeds, options=Options(placement="all", reduce_range=False, per_channel=per_channel))
    lost = np.abs(np.subtract(*_runs(full, feeds[0]))).max()
    assert lost > 2 * step or not products_overflow()


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("MatMul (x, w)", normal(64, 32)),
        ("MatMul (x, w)", normal(64, 32)[:63]),
        ("Gemm <transB = 1> (x, w)", normal(32, 64)),
        ("Gemm (x, w)", normal(64, 32)),
    ],
)
def test_nor_does_one_of_a_matrix_product(text: str, weight: NDArray[np.float32]) -> None:
    inputs = weight.shape[1] if "transB" in text else weight.shape[0]
    model = build(f"(float[16, {inputs}] x) => (float[16, 32] y) {{ y = {text} }}", w=weight)
    rng = np.random.default_rng(0)
    feeds = [{"x": np.where(rng.random((16, inputs)) < 0.5, 1.0, 0.1).astype(np.float32)} for _ in range(6)]
    q = onnxq.quantize(model, feeds, options=REDUCED)
    assert q.plan.quantized
    plain, optimized = _runs(q, feeds[0])
    np.testing.assert_allclose(optimized, plain, atol=1e-5 * np.abs(plain).max())


def test_scales_are_raised_as_far_as_the_largest_pair_needs_and_no_further() -> None:
    weight = np.zeros((3, 4, 1, 1), np.float32)
    weight[0, :, 0, 0] = 1.0, 1.0, 0.0, 0.0  # these two are added
    weight[1, :, 0, 0] = 0.0, 1.0, 1.0, 0.0  # these are not
    weight[2, :, 0, 0] = 1.0, -1.0, 0.5, 0.6  # what cancels does not overflow
    node = ir.node("Conv", [None, None])
    spec = QuantSpec(narrow_range=True, granularity=PerChannel(0))
    least = least_scale(node, weight, spec)
    np.testing.assert_allclose(least, np.array([2.0, 1.0, 1.1]) / 127.4, rtol=1e-6)
    np.testing.assert_allclose(least_scale(node, weight, QuantSpec(granularity=PerTensor())), 2.0 / 127.4)


def test_of_a_transposed_convolution_input_channels_are_neighbours() -> None:
    weight = np.zeros((4, 3, 2, 2), np.float32)
    weight[0, 0, 1, 1] = weight[1, 0, 1, 1] = 1.0  # these two are added
    weight[0, 1, 1, 1] = weight[1, 1, 0, 1] = 1.0  # these are of two positions
    weight[1, 2, 0, 0] = weight[2, 2, 0, 0] = 1.0  # these are of two pairs
    least = least_scale(ir.node("ConvTranspose", [None, None]), weight, QuantSpec(granularity=PerChannel(1)))
    np.testing.assert_allclose(least, np.array([2.0, 1.0, 1.0]) / 127.4, rtol=1e-6)


def test_a_depthwise_convolution_keeps_all_of_its_range() -> None:
    node = ir.node("Conv", [None, None], attributes={"group": 16})
    assert not least_scale(node, normal(16, 1, 3, 3), QuantSpec(granularity=PerChannel(0))).any()
    assert least_scale(node, normal(32, 1, 3, 3), QuantSpec(granularity=PerChannel(0))).all(), "two outputs a channel"


def test_it_costs_less_than_weights_of_7_bits() -> None:
    model = build(
        "(float[1, 16, 12, 12] x) => (float[1, 32, 10, 10] y) { y = Conv (x, w) }", w=normal(32, 16, 3, 3, scale=0.1)
    )
    feeds = [{"x": normal(1, 16, 12, 12, seed=k, scale=1.0)} for k in range(8)]

    def plain(**options: Any) -> float:
        q = onnxq.quantize(model, feeds, options=Options(placement="all", act_bits=8, **options))
        want = open_session(model).run(None, feeds[0])[0]
        noise = _runs(q, feeds[0])[0] - want
        return float(10 * np.log10(np.square(want).sum() / np.square(noise).sum()))

    full, reduced, seven = plain(reduce_range=False), plain(reduce_range=True), plain(weight_bits=7)
    assert full - 1.0 < reduced <= full + 0.1 and seven < full - 2.0


def test_by_itself_it_is_asked_for_where_this_processor_needs_it() -> None:
    model = build("(float[4, 32] x) => (float[4, 16] y) { y = MatMul (x, w) }", w=normal(32, 16))
    feeds = [{"x": normal(4, 32, seed=k, scale=1.0)} for k in range(4)]
    q = onnxq.quantize(model, feeds, options=Options(placement="all"))
    assert q.plan.by_name["w"].spec.reduced == products_overflow()
    said = [note for note in q.notes if note.startswith("reduce_range")]
    assert len(said) == products_overflow() and all("--full-range" in note for note in said)
    for wanted in (True, False):
        options = Options(placement="all", reduce_range=wanted)
        assert onnxq.quantize(model, feeds, options=options).plan.by_name["w"].spec.reduced == wanted
    assert not onnxq.quantize(model, feeds, backend="tensorrt").plan.by_name["w"].spec.reduced


def test_a_target_without_8_bit_integers_refuses_it() -> None:
    model = build("(float[4, 32] x) => (float[4, 16] y) { y = MatMul (x, w) }", w=normal(32, 16))
    with pytest.raises(OptionError, match="reduce_range"):
        onnxq.quantize(model, [{"x": normal(4, 32)}], backend="tensorrt_fp8", options=Options(reduce_range=True))
