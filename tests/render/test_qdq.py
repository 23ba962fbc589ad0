"""The rendered QDQ model against a simulation with onnxq's own arithmetic, in onnxruntime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, Quantized
from onnxq.options import Override
from onnxq.ort.session import Session
from onnxq.qparams import dequantize, fake_quantize, quantize
from tests.models import build, constants_of, f32, images, normal

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
    stored = constants_of(proto(made(chain())))
    assert stored["w1_quantized"].dtype == np.int8
    assert stored["b1_quantized"].dtype == np.int32
    assert not {"w1", "b1", "w2", "b2"} & stored.keys()


def test_bias_scale_is_the_product() -> None:
    q = made(chain())
    np.testing.assert_array_equal(q.qparams["b1"].scale, q.qparams["x"].scale * q.qparams["w1"].scale)


def test_relu_vanishes_where_the_quantizer_saturates() -> None:
    assert "Relu" not in [n.op_type for n in proto(made(chain())).graph.node]
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
        (Options(placement="all", weight_bits=4), {"w1_quantized": onnx.TensorProto.UINT4}),
        (Options(placement="all", weight_bits=4, weight_symmetric=True), {"w1_quantized": onnx.TensorProto.INT4}),
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


@pytest.mark.parametrize("weight_bits", [4, 8, 16])
@pytest.mark.parametrize("act_bits", [2, 4, 8, 9, 16])
def test_convolutions_run_at_all_widths(weight_bits: int, act_bits: int) -> None:
    model = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)\n r = Relu (a)\n y = Conv (r, w) }",
        w=normal(4, 4, 1, 1),
    )
    q = made(model, Options(placement="all", act_bits=act_bits, weight_bits=weight_bits), images(1, 4, 6, 6))
    feed = images(1, 4, 6, 6)[0]
    optimized, plain = (Session(q.qdq(), optimize=on).run(feed)["y"] for on in (True, False))
    step = float(q.qparams["y"].scale)
    np.testing.assert_allclose(optimized, plain, atol=2.01 * step)  # rounding at ties, twice


def one_relu(output: str = "float[1, 4, 6, 6] y") -> onnx.ModelProto:
    return build(f"(float[N, 4, 6, 6] x) => ({output}) {{ a = Conv (x, w)\n y = Relu (a) }}", w=normal(4, 4, 1, 1))


def test_a_relu_is_never_left_to_a_16_bit_quantizer() -> None:
    result = proto(made(one_relu(), Options(placement="all", act_bits=16), images(1, 4, 6, 6)))
    assert "Relu" in [n.op_type for n in result.graph.node]


def test_an_output_behind_a_vanished_relu_keeps_its_declared_shape() -> None:
    model = one_relu("float[N, C, H, W] y")
    result = proto(made(model, feeds=images(1, 4, 6, 6)))
    assert "Relu" not in [n.op_type for n in result.graph.node]
    assert result.graph.output[0] == model.graph.output[0]


def two_layers() -> onnx.ModelProto:
    return build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
            [one] a = Conv (x, w)
            [act] r = Relu (a)
            [two] y = Conv (r, v)
        }""",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
    )


def test_a_reader_with_other_bits_reads_the_tensor_itself() -> None:
    options = Options(placement="all", override=(("two", Override(act_bits=16)),))
    result = proto(made(two_layers(), options, images(1, 4, 6, 6)))
    made_by = {name: node for node in result.graph.node for name in node.output}
    two = next(n for n in result.graph.node if n.name == "two")
    quantizer = made_by[made_by[two.input[0]].input[0]]
    assert quantizer.op_type == "QuantizeLinear"
    assert made_by[quantizer.input[0]].name == "act", "not what another quantizer gave back"
    read = {name for node in result.graph.node for name in node.input} | {o.name for o in result.graph.output}
    assert all(set(n.output) & read for n in result.graph.node), "no quantizer is left that nothing reads"


@pytest.mark.parametrize("other", ["one", "two"])
def test_two_readers_may_differ(other: str) -> None:
    """Whichever of them comes first in the graph."""
    model = build(
        """(float[4, 8] x) => (float[4, 8] y, float[4, 8] z) {
            [first] a = Add (x, x)
            [one] y = MatMul (a, w)
            [two] z = MatMul (a, w)
        }""",
        w=normal(8, 8),
    )
    options = Options(placement="all", override=((other, Override(act_bits=16)),))
    q = made(model, options, images(4, 8))
    result = proto(q)
    made_by = {name: node for node in result.graph.node for name in node.output}
    for node in result.graph.node:
        if node.name in ("one", "two"):
            quantizer = made_by[made_by[node.input[0]].input[0]]
            zero = next(t for t in result.graph.initializer if t.name == quantizer.input[2])
            wanted = onnx.TensorProto.UINT16 if node.name == other else onnx.TensorProto.UINT8
            assert zero.data_type == wanted and quantizer.input[0] == "a"


def test_a_relu_stays_where_one_of_two_quantizers_does_not_saturate() -> None:
    model = two_layers()
    model.graph.output.append(onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [1, 4, 6, 6]))
    options = Options(placement="all", override=(("two", Override(symmetric=True)),))
    q = made(model, options, images(1, 4, 6, 6))
    assert {s.spec.signed for s in q.plan.sites if s.tensor == "r"} == {False, True}
    assert "Relu" in [n.op_type for n in proto(q).graph.node]
    feed = images(1, 4, 6, 6)[0]
    reference = Session(ir.serde.deserialize_model(model)).run(feed)
    got = Session(q.qdq(), optimize=False).run(feed)
    for name in ("r", "y"):
        np.testing.assert_allclose(got[name], reference[name], atol=0.05 * np.abs(reference[name]).max())


def test_branches_have_dequantizers_of_their_own() -> None:
    model = build(
        """(float[4, 8] x, bool c) => (float[4, 8] y) {
            h = MatMul (x, w)
            y = If (c) <
                then_branch = yes () => (float[4, 8] t) { t = MatMul (h, w) },
                else_branch = no () => (float[4, 8] e) { s = Add (h, h)
                    e = MatMul (s, w) }
            >
        }""",
        w=normal(8, 8),
    )
    feeds = [{**feed, "c": np.array(i % 2 == 0)} for i, feed in enumerate(images(4, 8))]
    result = proto(made(model, feeds=feeds))
    onnx.checker.check_model(result, full_check=True)
    branches = [a.g for n in result.graph.node if n.op_type == "If" for a in n.attribute]
    for branch in branches:
        assert [n.op_type for n in branch.node].count("DequantizeLinear") >= 2, "of h and of w"
    assert [n.op_type for n in result.graph.node].count("QuantizeLinear") == 2, "x and h, once each"
    assert len([t for t in result.graph.initializer if list(t.dims) == [8, 8]]) == 1, "the weight is stored once"
    for feed in feeds[:2]:
        expected = Session(ir.serde.deserialize_model(model)).run(feed)["y"]
        got = Session(result.SerializeToString(), optimize=False).run(feed)["y"]
        np.testing.assert_allclose(got, expected, atol=0.05 * np.abs(expected).max())
