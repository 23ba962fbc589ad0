"""Numbers that no kernel of a target multiplies with."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from tests.models import build, f32, normal


def convs(channels: int) -> onnx.ModelProto:
    """Two Conv: the weight of the first has a scale for each input channel, that of the second for each output."""
    ints = [np.clip(np.rint(normal(8, n, 3, 3, seed=n) * 100), -127, 127).astype(np.int8) for n in (channels, 8)]
    return build(
        f"""(float[1, {channels}, 8, 8] x) => (float[1, 8, 8, 8] y) {{
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            vd = DequantizeLinear <axis = 1> (v, vs, vz)
            [first] a = Conv <pads = [1, 1, 1, 1]> (xd, vd, bias)
            aq = QuantizeLinear (a, s, z)
            ad = DequantizeLinear (aq, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws, wz)
            [second] b = Conv <pads = [1, 1, 1, 1]> (ad, wd, bias)
            bq = QuantizeLinear (b, s, z)
            y = DequantizeLinear (bq, s, z)
        }}""",
        s=f32(0.03),
        z=np.uint8(128),
        v=ints[0],
        vs=np.linspace(0.005, 0.02, channels, dtype=np.float32),
        vz=np.zeros(channels, np.int8),
        w=ints[1],
        ws=np.linspace(0.005, 0.02, 8, dtype=np.float32),
        wz=np.zeros(8, np.int8),
        bias=normal(8, scale=0.1),
    )


@pytest.mark.parametrize("channels", [4, 8])
@pytest.mark.parametrize("backend", ["qnn", "snpe"])
def test_a_layer_whose_scales_are_those_of_input_channels_stays_float(backend: str, channels: int) -> None:
    made = onnxq.deploy(convs(channels), backend=backend)
    assert [node for node, op in made.plan.quantized.items() if op == "Conv"] == ["second"]
    (kept,) = (k for k in made.plan.kept_float if k.node == "first")
    assert "its scales are those of axis 1, where the output channels lie along axis 0" in kept.reason
