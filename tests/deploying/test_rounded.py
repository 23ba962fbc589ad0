"""Weights that a model rounds while it runs, in layers that a target computes in float: rounded there, too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer
from tests.models import build, f32, images, normal

FEEDS = images(1, 4, 8, 8)


def model(*, past: bool = False) -> onnx.ModelProto:
    """A convolution in integers, and behind a tensor without a scale a product, whose weight is rounded to 4 bits."""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 8] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wq = QuantizeLinear (w, ws, wz)  wd = DequantizeLinear (wq, ws, wz)
            c = Conv (xd, wd)
            cq = QuantizeLinear (c, t, z)  cd = DequantizeLinear (cq, t, z)
            m = GlobalAveragePool (cd)  f = Flatten (m)
            vq = QuantizeLinear (v, vs, wz)  vc = Clip (vq, low, high)  vd = DequantizeLinear (vc, vs, wz)
            [last] {"l" if past else "y"} = MatMul (f, vd)
            {"p = MatMul (f, v)  y = Add (l, p)" if past else ""}
        }}""",
        s=f32(0.03),
        t=f32(0.05),
        z=np.uint8(128),
        w=normal(6, 4, 3, 3),
        ws=f32(0.02),
        wz=np.int8(0),
        v=normal(6, 8, seed=3),
        vs=f32(0.2),
        low=np.int8(-7),
        high=np.int8(7),
    )


@pytest.mark.parametrize("backend", ["qnn", "openvino", "snpe"])
@pytest.mark.parametrize("past", [False, True])
def test_the_result_computes_what_was_given(backend: str, past: bool) -> None:
    given = model(past=past)
    made = onnxq.deploy(given, backend=backend)
    assert "last" not in made.plan.quantized
    want, got = (infer(m, FEEDS, optimize=False)["y"] for m in (given, ir.to_proto(made.rendered())))
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() < (0.01 if not past else 10)
