"""What is read in float beside its quantizer stays as it is; a layer keeps the quantizer it has before its function."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer, sqnr
from tests.models import build, f32, images

FEEDS = images(1, 4, 8, 8)
GRIDS = {
    "s": f32(0.03),
    "z": np.uint8(128),
    "t": f32(0.02),
    "from": np.uint8(0),
    "sw": f32([0.004, 0.005, 0.006, 0.007]),
    "zw": np.zeros(4, np.int8),
    "w": np.random.default_rng(0).integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
    "v": np.random.default_rng(1).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
}
CONV = """xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
    wd = DequantizeLinear <axis = 0> (w, sw, zw)
    [first] c = Conv <pads = [1, 1, 1, 1]> (xd, wd)"""


def outputs(model: onnx.ModelProto | ir.Model) -> dict[str, list[np.ndarray]]:
    proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    return infer(proto, FEEDS, optimize=False)


def features(zero: str = "from", middle: str = "r = Relu (c)") -> onnx.ModelProto:
    """An output ``r``, in float, that the next layer reads quantized, on a grid that ends long before its range."""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] r) {{
            {CONV}
            {middle}
            q = QuantizeLinear (r, t, {zero})  d = DequantizeLinear (q, t, {zero})
            vd = DequantizeLinear <axis = 0> (v, sw, zw)
            e = Conv (d, vd)
            eq = QuantizeLinear (e, s, z)  y = DequantizeLinear (eq, s, z)
        }}""",
        **GRIDS,
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn", "openvino", "tvm", "rknn", "academic"])
@pytest.mark.parametrize("middle", ["r = Relu (c)", "r = Identity (c)"])
def test_an_output_in_float_stays_so_where_others_read_it_quantized(backend: str, middle: str) -> None:
    source = features(middle=middle)
    wanted, found = outputs(source), outputs(onnxq.deploy(source, backend=backend).rendered())
    assert sqnr(wanted["r"], found["r"]) > 35
    assert max(a.max() for a in found["r"]) > 1.5 * 0.02 * 255, "past the end of the grid"


def test_an_output_behind_its_quantizer_is_quantized_still() -> None:
    source = build(
        f"(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{ {CONV} q = QuantizeLinear (c, s, z)"
        " y = DequantizeLinear (q, s, z) }",
        **GRIDS,
    )
    made = onnxq.deploy(source, backend="qnn")
    assert sqnr(outputs(source)["y"], outputs(made.rendered())["y"]) > 100
    assert set(made.plan.quantized.values()) == {"Conv"}


def test_a_layer_whose_result_is_needed_in_float_is_none_where_each_has_a_quantizer_behind_it() -> None:
    made = onnxq.deploy(features(), backend="qnn")
    assert {k.node: k.reason for k in made.plan.kept_float}["first"] == "tensor 'r' is not quantized in the model given"
    assert list(made.plan.quantized.values()) == ["Conv"]


FUNCTION = f"""(float[1, 4, 8, 8] x) => (float[1, 4, 1, 1] y) {{
    {CONV}
    q = QuantizeLinear (c, s, z)  d = DequantizeLinear (q, s, z)
    [function] r = Relu (d)
    y = GlobalMaxPool (r)
}}"""


@pytest.mark.parametrize("backend", ["qnn", "onnxruntime", "tvm", "rknn"])
def test_a_layer_keeps_its_own_quantizer_where_there_is_none_behind_its_function(backend: str) -> None:
    """onnxruntime's quantizer writes so if it is asked for convolutions alone."""
    source = build(FUNCTION, **GRIDS)
    made = onnxq.deploy(source, backend=backend)
    assert made.plan.quantized["first"] == "Conv"
    assert "function" not in made.plan.absorbed
    assert [s.produced for s in made.plan.sites if s.tensor == "c"] == [True]
    assert sqnr(outputs(source)["y"], outputs(made.rendered())["y"]) > 60
