"""Activation functions between two quantizers: the operator in front stays in integers where no zero point clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from tests.contract import infer
from tests.models import build, f32, images

FEEDS = images(1, 8, 12, 12)


def layers(function: str, *, zero: int, kind: type[np.integer[Any]], between: bool = True) -> onnx.ModelProto:
    """Two convolutions with an activation function between, as onnxruntime's own quantizer writes them."""
    pair = "aq = QuantizeLinear (a, s, z)  ad = DequantizeLinear (aq, s, z)" if between else "ad = Identity (a)"
    bounds = "(ad, low, high)" if function == "Clip" else "(ad)"
    return build(
        f"""(float[1, 8, 12, 12] x) => (float[1, 8, 12, 12] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            v = DequantizeLinear (w, sw, zw)
            a = Conv <pads = [1, 1, 1, 1]> (xd, v)
            {pair}
            f = {function} {bounds}
            fq = QuantizeLinear (f, s, zf)  fd = DequantizeLinear (fq, s, zf)
            c = Conv <pads = [1, 1, 1, 1]> (fd, v)
            cq = QuantizeLinear (c, s, z)  y = DequantizeLinear (cq, s, z)
        }}""",
        w=np.random.default_rng(0).integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
        s=f32(6 / 255 if kind is np.uint8 else 6 / 127),
        z=kind(128 if kind is np.uint8 else 0),
        zf=kind(zero),
        sw=f32(0.001),
        zw=np.int8(0),
        low=f32(0.0),
        high=f32(6.0),
    )


def kernels(path: Path) -> int:
    """How many convolutions onnxruntime computes in integers."""
    seen = onnxq.verify(path, FEEDS, backend="onnxruntime")
    return sum(op.split()[0] == "QLinearConv" for op in seen.integer)


@pytest.mark.parametrize("function", ["Relu", "Clip"])
@pytest.mark.parametrize(("kind", "zero", "apart"), [(np.int8, 0, True), (np.uint8, 128, True), (np.uint8, 0, False)])
def test_convolutions_in_front_stay_in_integers(
    function: str, kind: type[np.integer[Any]], zero: int, apart: bool, tmp_path: Path
) -> None:
    model = layers(function, zero=zero, kind=kind)
    made = onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "out.onnx")
    assert kernels(tmp_path / "out.onnx") == 2
    kept = {k.op: k.reason for k in made.plan.kept_float}
    assert ("between two quantizers" in kept.get(function, "")) == apart
    assert (function in [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]) == apart
    want = infer(model, FEEDS, optimize=False)["y"]  # exact: its kernels may cut off sums, those of the result do not
    for optimize in (True, False):
        got = infer(onnx.load(tmp_path / "out.onnx"), FEEDS, optimize=optimize)["y"]
        assert max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True)) <= 6 / 127 * 1.01


def test_no_quantizer_is_put_where_the_model_given_has_none(tmp_path: Path) -> None:
    model = layers("Relu", zero=0, kind=np.int8, between=False)
    made = onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "out.onnx")
    assert "a" not in {site.tensor for site in made.plan.sites}
    assert "between two quantizers" not in " ".join(k.reason for k in made.plan.kept_float)
