"""Numbers of the model given in a plan of the target: other signs, quantizers that move, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.errors import BackendError
from tests.contract import infer
from tests.models import build, f32, images


def two_layers(x: str, more: str = "", outputs: str = "", **constants: Any) -> onnx.ModelProto:
    """A convolution of uint8 data, with what is behind it, and another convolution."""
    numbers: dict[str, Any] = {"sx": f32(0.03), "zx": np.uint8(128), "sw": f32(0.002), "zw": np.int8(0), **constants}
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, h, w] y{outputs}) {{
            xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)
            v = DequantizeLinear (k, sw, zw)
            a = Conv (xd, v)
            {more}
            {x}q = QuantizeLinear ({x}, sx, zx)  {x}d = DequantizeLinear ({x}q, sx, zx)
            c = Conv ({x}d, v)
            cq = QuantizeLinear (c, sx, zx)  y = DequantizeLinear (cq, sx, zx)
        }}""",
        k=np.random.default_rng(0).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
        **numbers,
    )


def test_unsigned_integers_around_the_middle_become_signed_ones_around_zero() -> None:
    model = two_layers("a")
    deployed = onnxq.deploy(model, backend="tensorrt")
    numbers = {s.tensor: deployed.qparams[s.name] for s in deployed.plan.sites if s.role == "activation"}
    assert {"x", "a"} <= numbers.keys()
    for found in numbers.values():
        assert found.spec.signed and float(found.scale) == np.float32(0.03) and int(found.zero_point) == 0
    feeds = images(1, 4, 8, 8)
    want, got = (infer(m, feeds, optimize=False)["y"] for m in (model, ir.to_proto(deployed.rendered())))
    assert max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True)) <= 0.0301, "one step"


def test_what_moves_keeps_its_quantizer_where_the_float_numbers_are_read_too() -> None:
    """In front of the MaxPool it would round what z, and the other pool's reader, get."""
    pool = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"
    model = two_layers("p", f"p = {pool} (a)  z = Neg (p)", ", float[1, 4, 4, 4] z")
    deployed = onnxq.deploy(model, backend="onnxruntime")
    feeds = images(1, 4, 8, 8, samples=2)
    want, got = (infer(m, feeds, optimize=False)["z"] for m in (model, ir.to_proto(deployed.rendered())))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_pools_of_other_zero_points_do_not_share_a_quantizer_in_front() -> None:
    pool = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"
    more = f"""p = {pool} (a)  o = {pool} (a)
        oq = QuantizeLinear (o, sx, zo)  od = DequantizeLinear (oq, sx, zo)  z = Conv (od, v)"""
    model = two_layers("p", more, ", float[1, 4, 4, 4] z", zo=np.uint8(30), sw=f32(0.02))
    deployed = onnxq.deploy(model, backend="onnxruntime")
    feeds = images(1, 4, 8, 8, samples=2)
    want, got = (infer(m, feeds, optimize=False) for m in (model, ir.to_proto(deployed.rendered())))
    for name in ("y", "z"):
        assert np.mean(np.abs(np.array(got[name]) - np.array(want[name])) > 1e-4) < 0.01, "but for ties"


@pytest.mark.parametrize(
    ("backend", "weight", "why"),
    [
        ("vitis", {"sx": f32(0.03)}, "its scale is not a power of two"),
        ("stpu", {"sw": f32([0.01] * 4), "zw": np.zeros(4, np.int8)}, "it has a scale for each channel"),
    ],
)
def test_scales_of_a_kind_that_a_target_has_not_are_refused(backend: str, weight: dict[str, Any], why: str) -> None:
    with pytest.raises(BackendError, match=why):
        onnxq.deploy(two_layers("a", **weight), backend=backend)


def depthwise(channels: int = 4) -> onnx.ModelProto:
    """A depthwise convolution whose data have a scale for each channel, as NNCF gives them."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, N, 8, 8] y) {
            xq = QuantizeLinear <axis = 1> (x, sx, zx)  xd = DequantizeLinear <axis = 1> (xq, sx, zx)
            v = DequantizeLinear <axis = 0> (k, sw, zw)
            c = DequantizeLinear <axis = 0> (b, sb, zb)
            o = Conv <group = 4> (xd, v, c)
            oq = QuantizeLinear (o, so, zo)  y = DequantizeLinear (oq, so, zo)
        }""",
        k=np.random.default_rng(0).integers(-127, 128, (channels, 1, 1, 1)).astype(np.int8),
        b=np.arange(channels, dtype=np.int32) * 100,
        sx=f32([0.01, 0.02, 0.03, 0.04]),
        zx=np.full(4, 128, np.uint8),
        so=f32(0.05),
        zo=np.uint8(128),
        sw=np.full(channels, 0.01, np.float32),
        zw=np.zeros(channels, np.int8),
        sb=np.full(channels, 2e-4, np.float32),
        zb=np.zeros(channels, np.int32),
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "ppl", "qnn", "rknn", "snpe", "tvm"])
def test_data_with_a_scale_for_each_channel_are_refused_by_name(backend: str) -> None:
    with pytest.raises(BackendError, match="'x': it has a scale for each channel"):
        onnxq.deploy(depthwise(), backend=backend)


@pytest.mark.parametrize("channels", [4, 8])
def test_data_with_a_scale_for_each_channel_keep_it_where_the_target_has_kernels_for_them(channels: int) -> None:
    given = depthwise(channels)
    made = onnxq.deploy(given, backend="openvino")
    (data,) = [made.qparams[s.name] for s in made.plan.sites if s.tensor == "x"]
    np.testing.assert_allclose(data.scale, [0.01, 0.02, 0.03, 0.04], rtol=1e-4)
    feeds = images(1, 4, 8, 8)
    want, got = (infer(m, feeds, optimize=False)["y"] for m in (given, ir.to_proto(made.rendered())))
    assert max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True)) < 0.0501, "one step, left out"
