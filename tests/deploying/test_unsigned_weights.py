"""Weights that stay exact on processors whose sums of products with int8 overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.cli import main
from onnxq.ort.overflow import products_overflow
from tests.contract import infer
from tests.models import build, f32

KINDS: dict[np.dtype[Any], tuple[int, int]] = {
    np.dtype(np.int8): (onnx.TensorProto.INT8, 0),
    np.dtype(np.uint8): (onnx.TensorProto.UINT8, 128),
}


def given(codes: NDArray[Any]) -> onnx.ModelProto:
    """A convolution whose weight is stored as these integers, a scale for each output channel."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws, wz)
            [conv] a = Conv <pads = [1, 1, 1, 1]> (xd, wd)
            yq = QuantizeLinear (a, s2, z)  y = DequantizeLinear (yq, s2, z)
        }""",
        s=f32(0.03),
        s2=f32(0.3),
        z=np.uint8(128),
        w=codes,
        ws=np.linspace(0.005, 0.02, 8, dtype=np.float32),
        wz=np.full(8, KINDS[codes.dtype][1], codes.dtype),
    )


def integers(most: int, dtype: type) -> NDArray[Any]:
    drawn = np.random.default_rng(0).integers(-most, most + 1, (8, 4, 3, 3))
    return (drawn + KINDS[np.dtype(dtype)][1]).astype(dtype)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_they_are_stored_without_sign_where_it_takes_that(backend: str, dtype: type, tmp_path: Path) -> None:
    """Of either kind, and not where two neighbours cannot exceed 16 bits: that is slower."""
    for most, flag, stored in (
        (127, "reduce-range", np.uint8),
        (127, "full-range", np.int8),
        (63, "reduce-range", np.int8),
    ):
        codes = integers(most, dtype)
        source, written = tmp_path / f"{most}.onnx", tmp_path / f"{most}-{flag}.onnx"
        onnx.save(given(codes), source)
        assert main(["deploy", str(source), "--backend", backend, f"--{flag}", "-o", str(written)]) == 0
        (weight,) = (i for i in onnx.load(written).graph.initializer if len(i.dims) == 4)
        kind, zero = KINDS[np.dtype(stored)]
        assert weight.data_type == kind
        now = onnx.numpy_helper.to_array(weight).astype(int) - zero
        np.testing.assert_array_equal(now, codes.astype(int) - KINDS[np.dtype(dtype)][1], "the same numbers")


@pytest.mark.skipif(not products_overflow(), reason="products do not overflow on this processor")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_integer_kernels_compute_what_the_model_given_says(dtype: type) -> None:
    source = given(integers(127, dtype))
    feeds = [{"x": np.full((1, 4, 8, 8), 3.5, np.float32)}]
    want = infer(source, feeds, optimize=False)["y"][0]
    exact = infer(ir.to_proto(onnxq.deploy(source).rendered()), feeds, optimize=True)["y"][0]
    cut = infer(
        ir.to_proto(onnxq.deploy(source, options=Options(reduce_range=False)).rendered()), feeds, optimize=True
    )["y"][0]
    assert np.abs(exact - want).max() < 0.31, "a step of the output, by rounding"
    assert np.abs(cut - want).max() > 3.0


@pytest.mark.parametrize("backend", ["ncnn", "qnn", "rknn", "snpe", "tensorrt", "tvm"])
def test_other_targets_have_int8_weights_whatever_the_flag(backend: str) -> None:
    source = given(integers(127, np.int8))
    plain = onnxq.deploy(source, backend=backend)
    asked = onnxq.deploy(source, backend=backend, options=Options(reduce_range=True))
    (weight,) = (site for site in plain.plan.sites if site.role == "weight")
    assert asked.qparams[weight.name].spec == plain.qparams[weight.name].spec
    assert asked.qparams[weight.name].spec.signed


def test_a_product_of_small_integers_with_several_zero_points_keeps_its_sign() -> None:
    """None of its sums overflow, in whichever kernel."""
    source = build(
        """(float[4, 16] x) => (float[4, 8] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 1> (w, ws, wz)
            [product] a = MatMul (xd, wd)
            yq = QuantizeLinear (a, s, z)  y = DequantizeLinear (yq, s, z)
        }""",
        s=f32(0.03),
        z=np.uint8(128),
        w=np.random.default_rng(0).integers(-20, 21, (16, 8)).astype(np.int8),
        ws=np.linspace(0.005, 0.02, 8, dtype=np.float32),
        wz=np.arange(-4, 4).astype(np.int8),
    )
    made = onnxq.deploy(source, options=Options(reduce_range=True))
    (weight,) = (site for site in made.plan.sites if site.role == "weight")
    assert made.plan.quantized["product"] == "MatMul" and made.qparams[weight.name].spec.signed


def test_a_weight_that_is_read_in_float_as_well_keeps_its_sign() -> None:
    """It would be unpacked at every run, or stored twice."""
    source = build(
        """(float[4, 16] x, float[4, 16] f) => (float[4, 16] y, float[4, 16] g) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, ws, wz)
            [integers] a = MatMul (xd, wd)
            yq = QuantizeLinear (a, s, z)  y = DequantizeLinear (yq, s, z)
            [floats] g = MatMul (f, wd)
        }""",
        s=f32(0.03),
        z=np.uint8(128),
        w=np.random.default_rng(0).integers(-127, 128, (16, 16)).astype(np.int8),
        ws=f32(0.01),
        wz=np.int8(0),
    )
    made = onnxq.deploy(source, options=Options(reduce_range=True))
    assert set(made.plan.quantized) >= {"integers"} and "floats" in made.plan.stored
    assert all(made.qparams[site.name].spec.signed for site in made.plan.sites if site.role == "weight")
