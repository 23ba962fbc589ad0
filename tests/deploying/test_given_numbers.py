"""Numbers that no kernel of a target multiplies with."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

import onnxq
from onnxq.errors import BackendError
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


def narrow_weight(signed: bool) -> onnx.ModelProto:
    """A convolution with a weight of 4 bits, a scale for each output channel."""
    kind = ml_dtypes.int4 if signed else ml_dtypes.uint4
    codes = np.random.default_rng(0).integers(-7, 8, (8, 4, 3, 3)) + (0 if signed else 8)
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws, wz)
            [conv] a = Conv <pads = [1, 1, 1, 1]> (xd, wd)
            aq = QuantizeLinear (a, t, z)  y = DequantizeLinear (aq, t, z)
        }""",
        opset=21,
        ir_version=10,
        s=f32(0.03),
        t=f32(0.05),
        z=np.uint8(128),
        w=codes.astype(kind),
        ws=np.linspace(0.01, 0.05, 8, dtype=np.float32),
        wz=np.full(8, 0 if signed else 8).astype(kind),
    )


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    ("backend", "bits"), [("openvino", 7), ("rknn", 8), ("tvm", 5), ("tensorrt", 8), ("onnxruntime", 4), ("qnn", 4)]
)
def test_a_weight_of_few_bits_is_written_in_more_where_a_target_has_no_such(
    backend: str, bits: int, signed: bool, tmp_path: Path
) -> None:
    made = onnxq.deploy(narrow_weight(signed), backend=backend, output=tmp_path / "out.onnx")
    (weight,) = (site for site in made.plan.sites if site.role == "weight")
    assert made.qparams[weight.name].spec.bits == bits and "conv" in made.plan.quantized
    assert made.recipe == ("the scales of the model given",)
    assert made.verification is not None and made.verification.against_source is not None
    assert made.verification.against_source.worst is not None
    assert made.verification.against_source.worst[1].sqnr > 25
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    narrow = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    assert (stored[f"{weight.tensor}_quantized"] in narrow) == (bits == 4)


def upsampled() -> onnx.ModelProto:
    """A Conv and a ConvTranspose, both of data with a zero point."""
    codes = np.random.default_rng(0).integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
    return build(
        """(float[1, 8, 8, 8] x) => (float[1, 8, 10, 10] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, ws, wz)
            [conv] a = Conv <pads = [1, 1, 1, 1]> (xd, wd)
            aq = QuantizeLinear (a, s, z)  ad = DequantizeLinear (aq, s, z)
            [up] b = ConvTranspose (ad, wd)
            bq = QuantizeLinear (b, s, z)  y = DequantizeLinear (bq, s, z)
        }""",
        s=f32(0.03),
        z=np.uint8(120),
        w=codes,
        ws=f32(0.001),
        wz=np.int8(0),
    )


def test_what_one_kind_of_operator_has_no_grid_for_keeps_those_float_not_the_model() -> None:
    """OpenVINO has transposed convolutions in integers for zero point 0 alone."""
    made = onnxq.deploy(upsampled(), backend="openvino")
    assert list(made.plan.quantized) == ["conv"]
    assert {k.node for k in made.plan.kept_float if "zero point is 120" in k.reason} == {"up"}
    assert made.verification is not None
    assert [said for said in made.verification.warnings if "what reads it stays float" in said]
    with pytest.raises(BackendError, match="its zero point is 120"):
        onnxq.deploy(upsampled(), backend="tensorrt")


def test_targets_that_have_such_grids_are_named() -> None:
    """A model of 8-bit floating point, as ModelOpt writes it, for the TensorRT of integers."""
    model = build(
        """(float[1, 8] x) => (float[1, 4] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wq = QuantizeLinear (w, t, z)  wd = DequantizeLinear (wq, t, z)
            y = MatMul (xd, wd)
        }""",
        opset=21,
        ir_version=10,
        s=f32(0.01),
        t=f32(0.01),
        z=np.zeros((), ml_dtypes.float8_e4m3fn),
        w=normal(8, 4),
    )
    with pytest.raises(onnxq.OnnxqError, match=r"its grid is float8.*those of --backend tensorrt_fp8"):
        onnxq.deploy(model, backend="tensorrt")
