"""Weights that a model rounds while it runs, in layers that a target computes in float: rounded there, too."""

from __future__ import annotations

from typing import Any

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


def _norm() -> dict[str, Any]:
    return {"g": normal(6, seed=2) + 2, "o": normal(6, seed=3), "m": f32([0] * 6), "v": f32([1] * 6)}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("backend", ["onnxruntime", "qonnx", "openvino"])
def test_a_bias_of_few_bits_is_the_rounded_one(backend: str, norm: bool) -> None:
    """As Brevitas' Int8Bias: its grid is none of the target's. A batch normalization folds the number it rounds to."""
    given = build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 6, 6, 6] y) {{
            xq = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, eight)
            wq = qonnx.custom_op.general.Quant <signed = 1, narrow = 1> (w, ws, z, eight)
            bq = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (b, bs, z, three)
            {"c" if norm else "y"} = Conv (xq, wq, bq)
            {"y = BatchNormalization (c, g, o, m, v)" if norm else ""}
        }}""",
        domains={"qonnx.custom_op.general": 1},
        s=f32(0.03),
        z=f32(0),
        eight=f32(8),
        three=f32(3),
        w=normal(6, 4, 3, 3),
        ws=f32(0.01),
        b=f32([0.4, -0.7, 0.1, 1.3, -0.2, 0.6]),
        bs=f32(0.5),
        **(_norm() if norm else {}),
    )
    made = onnxq.deploy(given, backend=backend)
    assert "Conv" in made.plan.quantized.values()
    found = made.verification.against_source if made.verification is not None else None
    assert found is not None and found.worst is not None and found.worst[1].sqnr > 60
