"""Weights of few bits as Brevitas exports them: 8-bit integers and a Clip in front of the DequantizeLinear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer
from tests.models import build, f32, images, normal

FEEDS = images(1, 4, 8, 8)


def clipped(low: int, high: int, *, quantizes: bool, signed: bool = True) -> onnx.ModelProto:
    """A convolution whose weight lies between two integers; ``quantizes`` a float one at run time."""
    kind, zero = (np.int8, 0) if signed else (np.uint8, 8)
    codes = np.random.default_rng(0).integers(low, high, (8, 4, 3, 3), endpoint=True).astype(kind)
    weight = normal(8, 4, 3, 3) if quantizes else codes
    quantizer = "i = QuantizeLinear <axis = 0> (w, ws, wz)" if quantizes else ""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            {quantizer}
            c = Clip ({"i" if quantizes else "w"}, low, high)
            wd = DequantizeLinear <axis = 0> (c, ws, wz)
            [conv] a = Conv <pads = [1, 1, 1, 1]> (xd, wd)
            aq = QuantizeLinear (a, t, z)  y = DequantizeLinear (aq, t, z)
        }}""",
        s=f32(0.03),
        t=f32(0.05),
        z=np.uint8(128),
        w=weight,
        ws=np.linspace(0.05, 0.1, 8, dtype=np.float32),
        wz=np.full(8, zero, kind),
        low=kind(low),
        high=kind(high),
    )


@pytest.mark.parametrize("quantizes", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "bits"), [(-7, 7, 4), (-8, 7, 4), (-3, 3, 3), (-1, 1, 2), (-8, 8, 5), (-127, 127, 8)]
)
def test_they_have_the_bits_of_their_bounds(low: int, high: int, bits: int, quantizes: bool, tmp_path: Path) -> None:
    model = clipped(low, high, quantizes=quantizes)
    made = onnxq.deploy(model, backend="academic", output=tmp_path / "q.onnx")
    (weight,) = (site for site in made.plan.sites if site.role == "weight")
    assert made.qparams[weight.name].spec.bits == bits
    assert made.recipe == ("the scales of the model given",)
    want, got = (infer(m, FEEDS, optimize=False)["y"] for m in (model, onnx.load(tmp_path / "q.onnx")))
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() <= 0.0501, "at most one step"


def test_unsigned_ones(tmp_path: Path) -> None:
    made = onnxq.deploy(clipped(0, 15, quantizes=False, signed=False), backend="qnn", output=tmp_path / "q.onnx")
    (weight,) = (site for site in made.plan.sites if site.role == "weight")
    assert made.qparams[weight.name].spec.bits == 4
    kinds = {t.name: t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert kinds[f"{weight.tensor}_quantized"] == onnx.TensorProto.INT4


def test_bounds_that_are_computed_are_left() -> None:
    model = clipped(-7, 7, quantizes=False)
    del model.graph.initializer[[t.name for t in model.graph.initializer].index("high")]
    model.graph.input.append(onnx.helper.make_tensor_value_info("high", onnx.TensorProto.INT8, []))
    with pytest.raises(onnxq.OnnxqError):
        onnxq.deploy(model, backend="academic")


def test_what_was_read_is_at_an_opset_that_has_its_integers() -> None:
    """Weights of 4 bits in 8 exist from opset 10 on, integers of 4 bits from 21."""
    model = clipped(-7, 7, quantizes=False)
    back = onnxq.read(model)
    assert back.model.opset_imports[""] == 21
    assert onnxq.read(clipped(-127, 127, quantizes=False)).model.opset_imports[""] == 17
    want, got = (infer(m, FEEDS, optimize=False)["y"] for m in (model, ir.to_proto(back.rendered())))
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() <= 0.0501, "at most one step"
