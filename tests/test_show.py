"""Showing a file: what is in a model and how it is quantized, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxq
from onnxq.cli import main
from onnxq.errors import ModelError, StatisticsError
from onnxq.show import ModelView, show
from tests import pairs
from tests.models import build, f32, images, normal


def view(model: onnx.ModelProto, folder: Path) -> ModelView:
    onnx.save(model, folder / "m.onnx")
    shown = show(folder / "m.onnx")
    assert isinstance(shown, ModelView)
    json.loads(json.dumps(shown.to_dict(), allow_nan=False))
    return shown


def test_a_float_model(tmp_path: Path) -> None:
    shown = view(pairs.float_model(), tmp_path)
    assert shown.quantized == ()
    assert shown.ops == {"ArgMax": 1, "MatMul": 1, "Relu": 1, "Sigmoid": 1}
    assert shown.inputs == {"x": "float Nx3"}
    assert shown.outputs == {"y": "float Nx4", "top": "int64 N"}
    assert shown.weight_bytes == {"float": 48}
    assert (shown.opset, shown.producer) == (17, "test")
    assert shown.file_bytes == (tmp_path / "m.onnx").stat().st_size


def test_a_shape_of_named_dimensions_can_be_read(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, 4, sixth] x, float[batch] z) => (float y) { y = ReduceSum <keepdims = 0> (x) }"""
    shown = view(parser.parse_model(text), tmp_path)
    assert shown.inputs == {"x": "float [batch, 4, sixth]", "z": "float [batch]"}
    assert shown.outputs == {"y": "float scalar"}


def test_what_is_no_tensor_is_not_called_one(tmp_path: Path) -> None:
    model = build(
        """(seq(float[2, 8]) s, optional(float[2, 8]) o, int64 i) => (float[2, 8] y, seq(float[2, 8]) t, bool h) {
            y = SequenceAt (s, i)  t = SequenceErase (s, i)  h = OptionalHasElement (o)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    shown = show(tmp_path / "m.onnx")
    assert isinstance(shown, ModelView)
    assert shown.inputs == {"s": "sequence of float 2x8", "o": "optional float 2x8", "i": "int64 scalar"}
    assert shown.outputs == {"y": "float 2x8", "t": "sequence of float 2x8", "h": "bool scalar"}


def test_a_quantized_model(tmp_path: Path) -> None:
    weight, activation = view(pairs.quantized_model(), tmp_path).quantized
    assert (weight.tensor, weight.role, weight.dtype, weight.scales, weight.axis) == ("w_q", "weight", "int8", 4, 1)
    assert weight.readers == ("MatMul",)
    assert weight.scale is not None
    assert weight.scale[0] < weight.scale[1]
    assert weight.zero_point == (0, 0)
    assert (activation.tensor, activation.role, activation.dtype) == ("h", "activation", "int8")
    assert (activation.scale, activation.axis) == ((pairs.SCALE, pairs.SCALE), None)
    assert activation.readers == ("Relu",)


def test_a_quantizer_without_a_zero_point_is_uint8(tmp_path: Path) -> None:
    model = pairs.quantized_model()
    for node in model.graph.node:
        if node.name in ("h_q", "h_dq"):
            del node.input[2]
    activation = view(model, tmp_path).quantized[1]
    assert (activation.dtype, activation.zero_point) == ("uint8", (0, 0))


def test_a_quantizer_says_its_type_where_it_has_no_zero_point(tmp_path: Path) -> None:
    model = build(
        """(float[1, 4] x) => (float[1, 4] y) {
            q = QuantizeLinear <output_dtype = 5> (x, s)
            y = DequantizeLinear (q, s)
        }""",
        opset=21,
        ir_version=10,
        s=np.float32(0.5),
    )
    (activation,) = view(model, tmp_path).quantized
    assert (activation.dtype, activation.zero_point) == ("int16", (0, 0))


@pytest.mark.parametrize("bits", [2, 4])
def test_weights_that_are_widened_as_they_are_loaded(bits: int, tmp_path: Path) -> None:
    """Signed integers of few bits, a scale for each channel, behind a Cast."""
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3))
    made = onnxq.quantize(model, images(1, 3, 8, 8), backend="qonnx", output=tmp_path / "given.onnx")
    source = tmp_path / "given.onnx"
    onnxq.deploy(source, backend="onnxruntime", output=tmp_path / "q.onnx")
    assert made.qparams["w"].scale.shape == (4,)
    options = onnxq.Options(weight_bits=bits, act_bits=bits, min_sqnr=-100)
    onnxq.quantize(model, images(1, 3, 8, 8), backend="qonnx", output=source, options=options)
    onnxq.deploy(source, backend="onnxruntime", output=tmp_path / "few.onnx")
    for name, kind in (("q", "int8"), ("few", f"int{bits}")):
        view = show(tmp_path / f"{name}.onnx")
        assert isinstance(view, ModelView)
        (weight,) = (tensor for tensor in view.quantized if tensor.role == "weight")
        assert (weight.dtype, weight.scales, weight.axis) == (kind, 4, 0)


def test_the_fake_quantize_of_openvino_has_the_numbers_that_it_was_written_with(tmp_path: Path) -> None:
    model = build("(float[1, 8] x) => (float[1, 4] y) { h = Relu (x)\n y = MatMul (h, w) }", w=normal(8, 4))
    options = onnxq.Options(format="openvino-fake-quantize", bias_correction=False)
    made = onnxq.quantize(model, images(1, 8), backend="openvino", output=tmp_path / "q.onnx", options=options)
    shown = show(tmp_path / "q.onnx")
    assert isinstance(shown, ModelView)
    found = {q.role: q for q in shown.quantized}
    for site in made.plan.sites:
        numbers, q = made.qparams[site.name], found[site.role]
        assert (q.dtype, q.scales) == (site.spec.dtype, numbers.scale.size)
        assert q.scale == pytest.approx((numbers.scale.min(), numbers.scale.max()), rel=1e-6)
        assert q.zero_point == (numbers.zero_point.min(), numbers.zero_point.max()) and q.readers == ("MatMul",)
    assert found["weight"].axis == 1 and found["activation"].axis is None


def test_other_quantizers_are_no_error(tmp_path: Path) -> None:
    """One of OpenVINO's that is none of integers, and one that nobody knows."""
    model = build(
        "(float[1, 4] x) => (float[1, 4] z) { y = FakeQuantize (x, a, b, a, b)\n z = FakeQuantize (y) }",
        domains={"org.openvinotoolkit": 1, "mine": 1},
        a=f32([-1]),
        b=f32([2]),
    )
    model.graph.node[0].domain, model.graph.node[1].domain = "org.openvinotoolkit", "mine"
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("levels", 16))
    (known,) = view(model, tmp_path).quantized
    assert (known.tensor, known.dtype, known.scale) == ("x", "16 levels", None)


def test_qoperators_have_weights_and_scales_of_their_own_places(tmp_path: Path) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 5] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Sigmoid (a)
            c = Concat <axis = 1> (a, b)
            d = GlobalAveragePool (c)
            e = Flatten (d)
            f = Gemm (e, v)
            g = MatMul (f, u)
            h = Relu (g)
            y = MatMul (h, t)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(8, 6, seed=1),
        u=normal(6, 7, seed=2),
        t=normal(7, 5, seed=3),
    )
    options = onnxq.Options(placement="all", format="qoperator", per_channel=True)
    result = onnxq.quantize(model, images(1, 3, 8, 8), output=tmp_path / "m.onnx", options=options)
    shown = show(tmp_path / "m.onnx")
    assert isinstance(shown, ModelView)
    weights = {found.tensor.removesuffix("_quantized"): found for found in shown.quantized if found.role == "weight"}
    assert {name: found.readers for name, found in weights.items()} == {
        "w": ("QLinearConv",),
        "v": ("QGemm",),
        "u": ("QLinearMatMul",),
        "t": ("MatMulIntegerToFloat",),
    }
    assert {name: found.axis for name, found in weights.items()} == {"w": 0, "v": 1, "u": 1, "t": 1}
    for name, found in weights.items():
        scale = result.qparams[name].scale
        assert found.scale == (float(scale.min()), float(scale.max()))
        assert found.dtype == "int8"


def test_external_data_of_a_branch_counts(tmp_path: Path) -> None:
    model = build(
        """(float[256] x, bool c) => (float[256] y) {
            y = If (c) <
                then_branch = one () => (float[256] p) { p = Add (x, k) },
                else_branch = other () => (float[256] q) { q = Neg (x) }
            >
        }"""
    )
    (branch,) = (a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    constant = onnx.numpy_helper.from_array(normal(256, scale=1.0), "k")
    onnx.external_data_helper.set_external_data(constant, "k.data")
    (tmp_path / "k.data").write_bytes(constant.raw_data)
    constant.ClearField("raw_data")
    branch.initializer.append(constant)
    assert view(model, tmp_path).file_bytes == (tmp_path / "m.onnx").stat().st_size + 1024


def test_external_data_counts(tmp_path: Path) -> None:
    model = pairs.float_model()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    shown = show(tmp_path / "m.onnx")
    assert shown.file_bytes == sum(p.stat().st_size for p in tmp_path.iterdir())


def test_what_is_no_model_or_statistics(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        show(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        show(tmp_path / "none.npz")
    np.savez(tmp_path / "data.npz", x=np.zeros(3))
    with pytest.raises(StatisticsError):
        show(tmp_path / "data.npz")


@pytest.mark.parametrize("form", ["qdq", "fake-quantize"])
def test_a_tensor_that_is_an_output_and_is_read_says_both(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Shape alone would be a strange reader of an activation; that it is the model's output as well is why."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] a, int64[4] s, float[1, 2, 4, 4] y) {
            a = Conv (x, w)
            s = Shape (a)
            b = Conv (a, v)
            y = Relu (b)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(2, 4, 3, 3),
    )
    options = onnxq.Options(placement="all", format=form)
    onnxq.quantize(model, images(1, 3, 8, 8), output=tmp_path / "m.onnx", options=options)
    found = {q.tensor.removesuffix("_float"): q for q in view(onnx.load(tmp_path / "m.onnx"), tmp_path).quantized}
    assert set(found["a"].readers) == {"Shape", "Conv"} and found["a"].output
    assert not found["x"].output and found["x"].readers == ("Conv",)
    assert found["y"].readers == () and found["y"].output
    assert main(["show", str(tmp_path / "m.onnx")]) == 0
    (row,) = (
        line for line in capsys.readouterr().out.splitlines() if line.split()[:2] == [found["a"].tensor, "activation"]
    )
    assert row.endswith(("Shape, Conv, output", "Conv, Shape, output"))


def test_rows_of_a_float_table_times_constants_are_no_quantizer(tmp_path: Path) -> None:
    model = build(
        "(int64[N, 8] ids) => (float[N, 8, 16] y) { e = Gather (t, ids) \n y = Mul (e, s) }",
        t=normal(20, 16),
        s=normal(16),
    )
    assert view(model, tmp_path).quantized == ()
