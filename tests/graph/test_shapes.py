from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.values import static_shape
from tests.graph.helpers import build, random


def value(model: ir.Model, name: str) -> ir.Value:
    return next(v for node in model.graph for v in node.outputs if v.name == name)


def test_shapes_follow_from_the_inputs() -> None:
    model = load(build("g (float[n,64] x) => (float[n,8] y) { a = MatMul(x, w) \n y = Relu(a) }", w=random(64, 8)))
    assert infer_shapes(model) == []
    assert str(value(model, "a").shape) == "[n,8]"
    assert value(model, "a").dtype == ir.DataType.FLOAT


def test_stale_shapes_in_the_file_are_not_believed() -> None:
    proto = build(
        "g (float[1,64] x) => (float[1,8] y) <float[5,8] a> { a = MatMul(x, w) \n y = Relu(a) }", w=random(64, 8)
    )
    model = load(proto)
    assert static_shape(value(model, "a")) == (5, 8)
    infer_shapes(model)
    assert static_shape(value(model, "a")) == (1, 8)


def test_shape_after_an_unknown_operator_is_kept() -> None:
    proto = build("g (float[4] x) => (float[4] y) <float[4] a> { a = Relu(x) \n y = Neg(a) }")
    proto.graph.node[0].domain = "mine"
    proto.opset_import.add(domain="mine", version=1)
    model = load(proto)
    infer_shapes(model)
    assert static_shape(value(model, "a")) == (4,)


def test_inside_subgraphs() -> None:
    text = """g (float[2,3] x, bool c) => (float[3,2] y) {
        y = If (c) <then_branch = a () => (float[3,2] p) { t = Neg(x) \n p = Transpose(t) },
                    else_branch = b () => (float[3,2] q) { q = Transpose(x) }> }"""
    model = load(build(text))
    infer_shapes(model)
    branch = model.graph[0].attributes["then_branch"].as_graph()
    assert static_shape(branch[0].outputs[0]) == (2, 3)


def test_what_a_branch_declares_of_its_output_is_not_believed() -> None:
    """Exporters write the sizes of a branch that was not traced; onnxruntime runs such a model, the checker refuses."""
    text = """g (float[2,3] x, bool c) => (float[n,2] y) {
        y = If (c) <then_branch = a () => (float[4,2] p) { p = Transpose(x) },
                    else_branch = b () => (float[3,2] q) { q = Transpose(x) }> }"""
    model = load(build(text))
    infer_shapes(model)
    assert static_shape(model.graph[0].attributes["then_branch"].as_graph().outputs[0]) == (3, 2)
    check(model)


def test_output_without_a_shape_gets_one_and_a_declared_one_stays() -> None:
    proto = build("g (float[2,3] x) => (float[3,2] y, float[a,b] z) { y = Transpose(x) \n z = Neg(x) }")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = load(proto)
    infer_shapes(model)
    assert str(model.graph.outputs[0].shape) == "[3,2]"
    assert str(model.graph.outputs[1].shape) == "[a,b]"


@pytest.mark.parametrize("declared", ["1,n", "2,2"])
def test_output_declared_with_a_shape_that_it_never_has(declared: str) -> None:
    text = "g (float[2,3] x) => (float[DECLARED] y, float[DECLARED] z) { y = Transpose(x) \n z = Neg(x) }"
    model = load(build(text.replace("DECLARED", declared)))
    notes = {note.node: note.message for note in infer_shapes(model)}
    assert notes.keys() == {"y", "z"}
    assert "corrected" in notes["y"]
    assert [str(output.shape) for output in model.graph.outputs] == ["[3,2]", "[2,3]"]


def test_stft_gives_half_of_the_spectrum_where_it_says_nothing() -> None:
    text = "g (float[1,128,1] x) => (float[1,15,9,2] y) { y = STFT (x, step, , length) }"
    model = load(build(text, step=np.array(8), length=np.array(16)))
    assert not infer_shapes(model) and model.graph.outputs[0].shape == [1, 15, 9, 2]
    check(model)


def test_groups_that_are_normalized_have_the_shape_of_what_they_were() -> None:
    text = "g (float[n,4,8] x) => (float[n,4,8] y) { a = GroupNormalization <num_groups = 2> (x, w, w)\n y = Relu (a) }"
    model = load(build(text, opset=21, ir_version=10, w=random(4)))
    infer_shapes(model)
    assert str(value(model, "a").shape) == "[n,4,8]" and value(model, "a").dtype is ir.DataType.FLOAT
    check(model)


def test_failure_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> onnx.ModelProto:
        raise onnx.shape_inference.InferenceError("no")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fails)
    model = load(build("g (float[2,3] x) => (float[2,3] y) <float[2,3] a> { a = Neg(x) \n y = Relu(a) }"))
    assert "shape inference failed" in infer_shapes(model)[0].message
    assert static_shape(value(model, "a")) == (2, 3)


def test_shapes_that_do_not_fit_stay_unknown() -> None:
    model = load(build("g (float[2,3] x) => (float[2,3] y) { a = MatMul(x, x) \n y = Relu(a) }"))
    infer_shapes(model)
    assert static_shape(value(model, "a")) is None


def test_a_declared_scalar_stays_one_where_inference_finds_no_shape() -> None:
    text = "g (float[2,3] x, int64[n] shape) => (float y) { r = Reshape(x, shape) \n y = ReduceMean<keepdims = 0>(r) }"
    model = load(build(text))
    infer_shapes(model)
    assert str(model.graph.outputs[0].shape) == "[]"


def test_big_constant_nodes_do_not_go_through_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights may be written as nodes: what follows from them is known, and they are not written out to be inferred."""
    proto = build("g (float[2,64] x) => (float[2,256] y, float[300] z) { a = MatMul(x, w) \n y = Relu(a) }")
    weight, end = (
        onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))
        for name, array in (("w", random(64, 256)), ("z", random(300)))
    )
    for node in (end, weight):
        proto.graph.node.insert(0, node)
    written: list[int] = []
    before = onnx.shape_inference.infer_shapes

    def sized(model: onnx.ModelProto, **how: bool) -> onnx.ModelProto:
        written.append(model.ByteSize())
        return before(model, **how)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", sized)
    model = ir.serde.deserialize_model(proto)
    assert infer_shapes(model) == []
    assert written and max(written) < 4096, "an output's numbers alone"
    assert static_shape(value(model, "a")) == (2, 256) and static_shape(value(model, "w")) == (64, 256)
    assert value(model, "w").dtype is value(model, "a").dtype is ir.DataType.FLOAT
    assert static_shape(value(model, "z")) == (300,)
    assert [node.op_type for node in model.graph] == ["Constant", "Constant", "MatMul", "Relu"], "they stay"
