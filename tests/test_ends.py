"""What goes into a model and comes out of it besides float32 tensors: sequences, bfloat16, 8-bit floats, old opsets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq import DataError, ExecutionError, Options, check, compare, quantize
from onnxq.ort.session import Session
from tests.contract import ALL
from tests.models import build

RNG = np.random.default_rng(0)
X = [{"x": RNG.standard_normal((4, 16)).astype(np.float32)} for _ in range(10)]
W = RNG.standard_normal((16, 8)).astype(np.float32)


def errors(found: list[Any]) -> list[str]:
    return [f"{f.where}: {f.what}" for f in found if f.level == "error"]


def test_a_sequence_that_comes_out_is_left_alone_and_said() -> None:
    model = build(
        "(float[4, 16] x) => (float[4, 8] y, seq(float[K, 8]) parts) {"
        " y = MatMul (x, w) \n parts = SplitToSequence <axis: int = 0> (y) }",
        w=W,
    )
    kind = model.graph.output[1].type.SerializeToString()
    quantized = quantize(model, X, options=ALL)
    assert "MatMul" in quantized.plan.quantized.values()
    assert quantized.verification is not None
    assert quantized.verification.outputs.keys() == {"y"}
    assert quantized.verification.outputs["y"].sqnr > 30
    assert any("'parts'" in warning for warning in quantized.verification.warnings)
    assert ir.to_proto(quantized.rendered()).graph.output[1].type.SerializeToString() == kind


def test_other_verbs_pass_over_sequences() -> None:
    model = build(
        "(float[4, 16] x) => (seq(float[K, 8]) parts, float[4, 8] y) {"
        " y = MatMul (x, w) \n parts = SplitToSequence <axis: int = 0> (y) }",
        w=W,
    )
    session = Session(model.SerializeToString())
    assert [info.name for info in session.outputs] == ["y"]
    assert session.run(X[0]).keys() == {"y"}
    assert len(session.run(X[0], ["parts"])["parts"]) == 4
    quantized = quantize(model, X, options=ALL)
    compared = compare(model, quantized, X)
    assert compared.outputs.keys() == {"y"}
    assert all(t.tensor != "parts" for t in compared.tensors)


def test_a_model_that_gives_a_sequence_alone() -> None:
    model = build(
        "(float[4, 16] x) => (seq(float[K, 8]) parts) {"
        " y = MatMul (x, w) \n parts = SplitToSequence <axis: int = 0> (y) }",
        w=W,
    )
    quantized = quantize(model, X, options=ALL)
    assert quantized.plan.quantized
    assert Session(quantized.rendered()).run(X[0]) == {}


def test_a_sequence_that_goes_in_is_refused_and_check_says_so() -> None:
    model = build("(seq(float[N]) s) => (float[N] y) { y = ConcatFromSequence <axis: int = 0> (s) }")
    feeds = [{"s": [np.ones(2, np.float32), np.ones(3, np.float32)]}]
    with pytest.raises(DataError, match="input 's': it is a sequence"):
        quantize(model, feeds)
    assert any("it is a sequence" in text for text in errors(check(model, data=feeds)))


def test_an_optional_tensor_is_fed_as_a_tensor() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [4, 16])
    x = helper.make_value_info("x", helper.make_optional_type_proto(tensor))
    nodes = [
        helper.make_node("OptionalGetElement", ["x"], ["inner"]),
        helper.make_node("MatMul", ["inner", "w"], ["y"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(W, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    quantized = quantize(model, X, options=ALL)
    assert quantized.verification is not None
    assert quantized.verification.outputs["y"].sqnr > 30


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float32])
def test_bfloat16_in_and_out(kind: Any) -> None:
    model = build("(bfloat16[4, 16] x) => (bfloat16[4, 8] y) { y = MatMul (x, w) }", w=W.astype(ml_dtypes.bfloat16))
    feeds = [{"x": x["x"].astype(ml_dtypes.bfloat16).astype(kind)} for x in X]
    assert errors(check(model, data=feeds)) == []
    quantized = quantize(model, feeds, options=ALL)
    assert quantized.plan.quantized
    session = Session(quantized.rendered())
    for feed in feeds:
        got = session.run(feed)["y"]
        assert got.dtype == ml_dtypes.bfloat16
        exact = feed["x"].astype(np.float64) @ W.astype(ml_dtypes.bfloat16).astype(np.float64)
        assert np.square(exact).sum() / np.square(exact - got.astype(np.float64)).sum() > 1e3  # 30 dB
    assert quantized.verification is not None
    assert quantized.verification.samples > 0
    assert quantized.verification.outputs["y"].sqnr > 30


def test_8_bit_floats_scalars_and_nothing_go_through_a_session() -> None:
    for shape in ((3,), (), (0, 2)):
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT8E4M3FN, shape) for n in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        x = np.ones(shape, ml_dtypes.float8_e4m3fn)
        got = Session(model.SerializeToString()).run({"x": x})["y"]
        assert got.dtype == x.dtype and got.shape == shape
        assert np.array_equal(got.astype(np.float32), x.astype(np.float32))


def test_check_looks_at_the_model_that_will_be_calibrated() -> None:
    """Add of opset 6 has no kernel in onnxruntime; raised it has one."""
    model = build("(float[2, 3] x) => (float[2, 3] y) { y = Add (x, x) }", opset=6, ir_version=3)
    feeds = [{"x": np.ones((2, 3), np.float32)}]
    with pytest.raises(ExecutionError):
        Session(model.SerializeToString())
    quantize(model, feeds, options=Options(placement="all"))
    assert errors(check(model, data=feeds)) == []


def test_check_says_what_it_mends_and_what_it_cannot() -> None:
    model = build("(float[2, 3] x) => (float[2, 3] y) { y = Add (x, c) }", ir_version=3, c=np.ones(3, np.float32))
    with pytest.raises(onnx.checker.ValidationError):  # initializers of IR 3 must be inputs as well
        onnx.checker.check_model(model)
    quantize(model, [{"x": np.ones((2, 3), np.float32)}])
    (found,) = [f for f in check(model) if "ONNX checker refuses" in f.what]
    assert found.level == "note" and found.hint is not None and "onnxruntime loads it all the same" in found.hint


def test_messages_of_onnxruntime_come_without_places_in_its_source() -> None:
    model = build("(float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }", ir_version=99)
    with pytest.raises(ExecutionError) as caught:
        Session(model.SerializeToString())
    assert "Unsupported model IR version: 99" in caught.value.what
    assert ".cc" not in caught.value.what and "::" not in caught.value.what
    assert caught.value.hint is not None and "newer onnxruntime" in caught.value.hint


def test_what_cannot_be_fed_is_named() -> None:
    model = build("(float[4] x) => (int4[4] y) { y = QuantizeLinear (x, s, z) }", opset=21, ir_version=10,
                  s=np.float32(0.5))  # fmt: skip
    model.graph.initializer.append(helper.make_tensor("z", TensorProto.INT4, [], [0]))
    feeds = [{"x": np.ones(4, np.float32)}]
    with pytest.raises(ExecutionError, match=r"'y' is a tensor\(int4\).*Cast"):
        quantize(model, feeds)
    assert any("'y' is a tensor(int4)" in text for text in errors(check(model, data=feeds)))
