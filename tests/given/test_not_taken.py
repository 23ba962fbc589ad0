"""Models whose activations have no scales: deploy says what it found in them, and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

import onnxq
from onnxq import BackendError
from onnxq.graph.files.load import load
from onnxq.integer_operators import quantizing
from onnxq.weight_only import quantize_weights
from tests.models import build, f32, images, normal


def embedding() -> onnx.ModelProto:
    """Rows of a table, and a layer."""
    return build(
        "(int64[1, 6] i) => (float[1, 6, 64] y) { e = Gather (table, i)\n r = Relu (e)\n y = MatMul (r, w) }",
        table=normal(100, 64, seed=1, scale=1.0),
        w=normal(64, 64, seed=2),
    )


def refused(model: Path | onnx.ModelProto, backend: str) -> str:
    with pytest.raises(BackendError) as caught:
        onnxq.deploy(model, backend=backend)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize(
    ("form", "bits", "found"),
    [
        ("qdq", 4, "2 DequantizeLinear"),
        ("qdq", 8, "2 DequantizeLinear"),
        ("matmulnbits", 4, "1 GatherBlockQuantized, 1 MatMulNBits"),
    ],
)
def test_weights_in_blocks(form: str, bits: int, found: str, backend: str, tmp_path: Path) -> None:
    onnx.save(embedding(), tmp_path / "m.onnx")
    quantize_weights(tmp_path / "m.onnx", tmp_path / "w.onnx", bits=bits, format=form)
    said = refused(tmp_path / "w.onnx", backend)
    assert f"only weights are quantized in the model ({found}), and {backend} needs scales of activations" in said
    assert f"Quantize the float model for {backend}" in said


@pytest.mark.parametrize(("count", "found"), [(1, "1 constant with scales"), (2, "2 constants with scales")])
def test_weights_with_a_scale_for_each_channel(count: int, found: str) -> None:
    other = "q" if count > 1 else "p"
    model = build(
        f"""(float[4, 16] x) => (float[4, 8] y, float[4, 8] z) {{
            w = DequantizeLinear <axis = 1> (p, s)
            y = MatMul (x, w)
            v = DequantizeLinear <axis = 1> ({other}, s)
            z = MatMul (x, v)
        }}""",
        p=np.full((16, 8), 3, np.int8),
        q=np.full((16, 8), 5, np.int8),
        s=np.full(8, 0.01, np.float32),
    )
    assert f"only weights are quantized in the model ({found})" in refused(model, "tensorrt")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt"])
def test_scales_that_are_found_while_it_runs(backend: str, tmp_path: Path) -> None:
    """The table has a scale that is known before; what computes has not."""
    onnx.save(embedding(), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "d.onnx")
    said = refused(tmp_path / "d.onnx", backend)
    assert "1 DynamicQuantizeLinear, 1 MatMulInteger in the model compute their scales at run time" in said
    assert f"Quantize the float model for {backend}" in said
    assert ("runs it as it is" in said) == (backend == "onnxruntime")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_table_beside_what_finds_scales_while_it_runs(backend: str, tmp_path: Path) -> None:
    """Its rows are moved about with their constant scale, which is no activation that the target takes over."""
    model = build(
        """(int64[1, 6] i) => (float[6, 1, 8] y) {
            e = Gather (table, i)
            t = Transpose <perm = [1, 0, 2]> (e)
            h = LSTM <hidden_size = 8> (t, w, r)
            s = Squeeze (h, one)
            y = MatMul (s, v)
        }""",
        table=normal(100, 16, seed=1, scale=1.0),
        w=normal(1, 32, 16),
        r=normal(1, 32, 8, seed=2),
        one=np.array([1]),
        v=normal(8, 8, seed=3),
    )
    onnx.save(model, tmp_path / "m.onnx")
    operators = ["Gather", "Transpose", "LSTM", "MatMul"]
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "d.onnx", op_types_to_quantize=operators)
    said = refused(tmp_path / "d.onnx", backend)
    assert "1 DynamicQuantizeLSTM, 1 DynamicQuantizeLinear, 1 MatMulInteger in the model compute their scales" in said


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("how", ["computed", "input", "overridable"])
def test_quantizers_whose_scale_is_no_constant(how: str, backend: str) -> None:
    """One that the model computes of its range, one that a caller gives or may give: others beside it are constant."""
    scale = "m = ReduceMax <keepdims = 0> (x)  s = Mul (m, t)" if how == "computed" else ""
    model = build(
        f"""(float[4, 16] x{"" if how == "computed" else ", float s"}) => (float[4, 8] y) {{
            {scale}
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, t, z)
            a = MatMul (xd, wd)
            aq = QuantizeLinear (a, t, z)  y = DequantizeLinear (aq, t, z)
        }}""",
        w=np.full((16, 8), 3, np.int8),
        t=f32(0.01),
        z=np.int8(0),
    )
    if how == "overridable":
        model.graph.initializer.append(onnx.numpy_helper.from_array(f32(0.02), "s"))
    assert "1 QuantizeLinear in the model compute their scales at run time" in refused(model, backend)


def test_a_float_model_has_nothing_of_it() -> None:
    assert "the model carries no quantizers. Use 'onnxq quantize'" in refused(embedding(), "tensorrt")


def test_packed_tables_are_not_quantized_again(tmp_path: Path) -> None:
    onnx.save(embedding(), tmp_path / "m.onnx")
    quantize_weights(tmp_path / "m.onnx", tmp_path / "w.onnx", bits=4, format="matmulnbits")
    assert sorted(quantizing(load(tmp_path / "w.onnx"))) == ["GatherBlockQuantized", "MatMulNBits"]


@pytest.mark.parametrize("backend", ["qnn", "tensorrt", "onnxruntime"])
def test_weights_alone_are_said_first(backend: str) -> None:
    """A zero point that the target has not is no reason where it needs scales of activations in any case."""
    model = build(
        "(float[2, 8] x) => (float[2, 4] y) { d = DequantizeLinear (w, s, z)  y = MatMul (x, d) }",
        w=np.arange(32, dtype=np.int8).reshape(8, 4),
        s=f32(0.1),
        z=np.int8(-1),
    )
    assert f"only weights are quantized in the model (1 constant with scales), and {backend} needs" in refused(
        model, backend
    )


def test_one_table_is_one(tmp_path: Path) -> None:
    onnx.save(embedding(), tmp_path / "m.onnx")
    notes = quantize_weights(tmp_path / "m.onnx", tmp_path / "w.onnx", bits=4).notes
    assert "1 table that rows are picked from takes 8 bits: no sum evens out the rounding of a row" in notes


@pytest.mark.parametrize(
    ("domain", "op", "do"),
    [
        ("qonnx.custom_op.general", "Quant", "export_onnx_qcdq"),
        ("com.amd.quark", "BFPQuantizeDequantize", "quantize the float model for tensorrt"),
        ("com.amd.quark", "ExtendedQuantizeLinear", "quantize the float model for tensorrt"),
        ("org.openvinotoolkit", "FakeQuantize", "--format qdq"),
    ],
)
def test_quantizers_that_are_not_read_are_named(domain: str, op: str, do: str) -> None:
    model = build(f"(float[1, 4] x) => (float[1, 4] y) {{ q = {domain}.{op} (x)\n y = Relu (q) }}", domains={domain: 1})
    said = refused(model, "tensorrt")
    assert f"the model quantizes with 1 {domain}::{op}, which deploy cannot take over" in said
    assert do in said and "carries no quantizers" not in said


@pytest.mark.parametrize("backend", ["snpe", "tengine"])
def test_a_table_beside_the_model_is_not_overlooked(backend: str, tmp_path: Path) -> None:
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { c = Conv <pads = [1, 1, 1, 1]> (x, w)\n y = Relu (c) }",
        w=normal(4, 3, 3, 3),
    )
    onnxq.quantize(model, images(1, 3, 8, 8), backend=backend, output=tmp_path / "q.onnx")
    said = refused(tmp_path / "q.onnx", "onnxruntime")
    assert "a table lies beside it" in said and backend in said and "deploy reads no tables" in said
