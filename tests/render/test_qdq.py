"""The rendered QDQ model against a simulation with onnxq's own arithmetic, in onnxruntime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, Quantized
from onnxq.qparams import dequantize, fake_quantize, quantize
from onnxq.session import Session
from tests.models import build, f32, images, normal

ALL = Options(placement="all")
Feeds = list[dict[str, np.ndarray[Any, np.dtype[Any]]]]


def chain() -> onnx.ModelProto:
    return build(
        "(float[2, 8] x) => (float[2, 4] y) { h = Gemm (x, w1, b1)\n r = Relu (h)\n y = Gemm (r, w2, b2) }",
        w1=normal(8, 16),
        b1=normal(16, seed=1),
        w2=normal(16, 4, seed=2),
        b2=normal(4, seed=3),
    )


def made(model: onnx.ModelProto, options: Options = ALL, feeds: Feeds | None = None) -> Quantized:
    return onnxq.quantize(model, feeds or images(2, 8), options=options)


def proto(quantized: Quantized) -> onnx.ModelProto:
    return ir.to_proto(quantized.qdq())


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def test_outputs_equal_the_simulation() -> None:
    q = made(chain())
    number = q.qparams
    values = {v.name: v.const_value.numpy() for v in q.model.graph.initializers.values() if v.const_value is not None}
    w1, w2 = (fake_quantize(values[n], number[n]) for n in ("w1", "w2"))
    b1, b2 = (
        dequantize(quantize(values[n], number[n]), number[n]).astype(np.float64).reshape(-1) for n in ("b1", "b2")
    )
    session = Session(q.qdq(), optimize=False)
    for feed in images(2, 8, seed=5):
        x = fake_quantize(feed["x"], number["x"]).astype(np.float64)
        hidden = np.maximum(x @ w1 + b1, 0).astype(np.float32)
        hidden = fake_quantize(hidden, number["r"]).astype(np.float64)
        expected = hidden @ w2 + b2
        step = float(number["r"].scale) * float(np.abs(w2).max())  # a code at a tie may go either way
        np.testing.assert_allclose(session.run(feed)["y"], expected, atol=1e-5 + step)
        assert np.median(np.abs(session.run(feed)["y"] - expected)) < 1e-5


def test_integers_are_stored_and_floats_are_gone() -> None:
    stored = constants(proto(made(chain())))
    assert stored["w1_quantized"].dtype == np.int8
    assert stored["b1_quantized"].dtype == np.int32
    assert not {"w1", "b1", "w2", "b2"} & stored.keys()


def test_bias_scale_is_the_product() -> None:
    q = made(chain())
    np.testing.assert_array_equal(q.qparams["b1"].scale, q.qparams["x"].scale * q.qparams["w1"].scale)


def test_relu_vanishes_where_the_quantizer_saturates() -> None:
    assert "Relu" in [n.op_type for n in proto(made(chain())).graph.node], (
        "a Gemm has a float output: nothing saturates"
    )
    conv = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)\n y = Relu (a) }", w=normal(4, 4, 1, 1)
    )
    asymmetric = proto(made(conv, feeds=images(1, 4, 6, 6)))
    assert "Relu" not in [n.op_type for n in asymmetric.graph.node]
    symmetric = proto(made(conv, Options(placement="all", symmetric=True), images(1, 4, 6, 6)))
    assert "Relu" in [n.op_type for n in symmetric.graph.node]


def test_clip_stays_where_its_bounds_are_inside_the_range() -> None:
    model = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)\n y = Clip (a, lo, hi) }",
        w=normal(4, 4, 1, 1),
        lo=f32(-1.0),
        hi=f32(-0.5),
    )
    q = made(model, feeds=images(1, 4, 6, 6))
    assert "Clip" in [n.op_type for n in proto(q).graph.node]
    got = Session(q.qdq()).run(images(1, 4, 6, 6)[0])["y"]
    assert got.max() <= -0.5 + float(q.qparams["y"].scale)


@pytest.mark.parametrize("fake", [False, True])
def test_graph_output_keeps_its_name_and_type(fake: bool) -> None:
    model = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] a, float[1, 4, 6, 6] y) { a = Conv (x, w)\n y = Conv (a, w) }",
        w=normal(4, 4, 1, 1),
    )
    q = made(model, feeds=images(1, 4, 6, 6))
    result = ir.to_proto(q.fake_quantize() if fake else q.qdq())
    assert [o.name for o in result.graph.output] == ["a", "y"]
    assert all(o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for o in result.graph.output)


def test_names_that_are_taken_already() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 8] y, float[2, 8] x_quantized) {
            x_quantized = Abs (x)
            x_scale = Neg (x)
            s = Add (x_scale, x_quantized)
            h = MatMul (x, w)
            y = Add (h, s)
        }""",
        w=normal(8, 8),
    )
    q = made(model)
    onnx.checker.check_model(proto(q), full_check=True)
    reference = Session(ir.serde.deserialize_model(model)).run(images(2, 8)[0])
    got = Session(q.qdq()).run(images(2, 8)[0])
    np.testing.assert_array_equal(got["x_quantized"], reference["x_quantized"])
    np.testing.assert_allclose(got["y"], reference["y"], atol=0.2)


def test_one_weight_read_with_two_axes_becomes_two() -> None:
    model = build(
        "(float[2, 8] x) => (float[2, 8] y) { h = Gemm (x, w)\n y = Gemm <transB = 1> (h, w) }", w=normal(8, 8)
    )
    q = made(model)
    axes = {str(s.spec.granularity) for s in q.plan.sites if s.role == "weight"}
    assert len(axes) == 2
    reference = Session(ir.serde.deserialize_model(model)).run(images(2, 8)[0])["y"]
    np.testing.assert_allclose(
        Session(q.qdq()).run(images(2, 8)[0])["y"], reference, atol=0.15 * np.abs(reference).max()
    )


@pytest.mark.parametrize(
    ("options", "types"),
    [
        (Options(placement="all", weight_bits=4), {"w1_quantized": onnx.TensorProto.INT4}),
        (Options(placement="all", weight_bits=16), {"w1_quantized": onnx.TensorProto.INT16}),
        (Options(placement="all", act_bits=16), {"x_zero_point": onnx.TensorProto.UINT16}),
    ],
)
def test_other_widths_need_opset_21(options: Options, types: dict[str, int]) -> None:
    q = made(chain(), options)
    result = proto(q)
    assert result.opset_import[0].version >= 21
    found = {t.name: t.data_type for t in result.graph.initializer}
    assert types.items() <= found.items()
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("bits", [4, 6])
def test_widths_that_no_kernel_has_become_functions(bits: int) -> None:
    result = proto(made(chain(), Options(placement="all", act_bits=bits)))
    assert [f.name for f in result.functions] == ["FakeQuantize"]
    assert "FakeQuantize" in [n.op_type for n in result.graph.node]
    Session(result.SerializeToString())
