from __future__ import annotations

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir
import pytest

from onnxq.errors import ModelError, OptionError
from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.note import Note
from onnxq.graph.passes.opset import raise_opset
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import apply, build, ops, random, run

REDUCE = "g (float[2,3] x) => (float[2,8] y) { s = ReduceSum<axes = [1], keepdims = 1>(x) \n y = MatMul(s, w) }"


def raised(model: ir.Model) -> list[Note]:
    return raise_opset(model)


def test_relabelled_where_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the converter is not needed here")

    monkeypatch.setattr(onnx.version_converter, "convert_version", never)
    proto = build("g (float[2,3] x) => (float[3,2] y) { a = Relu(x) \n y = Transpose(a) }", opset=13, ir_version=7)
    model, notes = apply(raised, proto, {"x": random(2, 3)})
    assert model.opset_imports == {"": 17}
    assert model.ir_version == 8
    assert notes == [Note("opset", "", "raised from 13 to 17")]


def test_converted_where_an_attribute_became_an_input() -> None:
    big = random(1, 2048)
    text = REDUCE.replace("[2,8]", "[2,2048]")
    model, _ = apply(raised, build(text, opset=11, ir_version=6, w=big), {"x": random(2, 3)})
    assert model.opset_imports == {"": 17}
    reduce = next(node for node in model.graph if node.op_type == "ReduceSum")
    assert "axes" not in reduce.attributes
    np.testing.assert_array_equal(np.asarray(model.graph.initializers["w"].const_value), big)
    assert [v.name for v in model.graph.inputs] == ["x"]


def test_converted_inside_branches() -> None:
    text = """g (float[2,3] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] p) { p = ReduceSum<axes = [1], keepdims = 0>(x) },
                    else_branch = b () => (float[2] q) { q = ReduceMax<axes = [1], keepdims = 0>(x) }> }"""
    model, _ = apply(raised, build(text, opset=12), {"x": random(2, 3), "c": np.array(True)})
    assert all("axes" not in n.attributes for g in (model.graph[-1],) for n in g.attributes["then_branch"].as_graph())


@pytest.mark.parametrize("value", [True, False])
def test_converted_where_branches_read_what_is_replaced(value: bool) -> None:
    text = """g (float[2,3,4] x, bool c) => (float[2,3,4] y) {
        s = Softmax <axis = 1> (x)
        y = If (c) <then_branch = a () => (float[2,3,4] p) { p = Neg (s) },
                    else_branch = b () => (float[2,3,4] q) {
                        t = LogSoftmax <axis = 1> (s)
                        q = If (c) <then_branch = d () => (float[2,3,4] u) { u = Abs (t) },
                                    else_branch = e () => (float[2,3,4] v) { v = Add (s, t) }> }> }"""
    model, _ = apply(raised, build(text, opset=11), {"x": random(2, 3, 4), "c": np.array(value)})
    assert not [v.name for n in model.graph.all_nodes() for v in n.outputs if "outside" in (v.name or "")]


def test_converted_in_an_order_that_bodies_can_be_run_in() -> None:
    text = """g (float[1,8,5] x, float[1,25] z) => (float[1,25] y, float[1,8,7] u) {
        u = Upsample <mode = "nearest", scales = [1.0, 1.0, 1.5]> (x)
        y = Loop (two, , z) <body = b (int64 i, bool k, float[1,25] c) => (bool q, float[1,25] d) {
            a = Relu (u)
            m = ReduceMax <keepdims = 0> (a)
            d = Add (c, m)
            q = Identity (k) }> }"""
    apply(raised, build(text, opset=7, two=np.array(2)), {"x": random(1, 8, 5), "z": random(1, 25)})


def test_metadata_and_private_domains_are_kept() -> None:
    proto = build(REDUCE, opset=11, w=random(1, 8))
    proto.producer_name, proto.doc_string = "someone", "words"
    proto.metadata_props.add(key="labels", value="a,b")
    proto.opset_import.add(domain="private", version=3)
    proto.graph.doc_string = "graph words"
    model, _ = apply(raised, proto, {"x": random(2, 3)})
    assert model.opset_imports == {"": 17, "private": 3}
    assert (model.producer_name, model.doc_string, model.metadata_props) == ("someone", "words", {"labels": "a,b"})
    assert model.graph.doc_string == "graph words"


def test_higher_opset_stays() -> None:
    model, notes = apply(
        raised, build("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=20, ir_version=9), {"x": random(2)}
    )
    assert (model.opset_imports, model.ir_version, notes) == ({"": 20}, 9, [])


def test_asked_for_opset() -> None:
    def change(model: ir.Model) -> list[Note]:
        return raise_opset(model, 21)

    model, _ = apply(change, build("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=13), {"x": random(2)})
    assert (model.opset_imports, model.ir_version) == ({"": 21}, 10)


@pytest.mark.parametrize(("opset", "words"), [(13, "never lowered"), (999, "not known")])
def test_opset_that_cannot_be(opset: int, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        raise_opset(load(build("g (float[2] x) => (float[2] y) { y = Relu(x) }")), opset)


def failing(*_: object) -> onnx.ModelProto:
    raise RuntimeError("no adapter for Softmax")


def test_stays_when_conversion_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.version_converter, "convert_version", failing)
    text = "g (float[2,4] x) => (float[2,2] y, float[2,2] z) { y, z = Split<axis = 1>(x) }"
    proto = build(text, opset=13)
    model, notes = apply(lambda m: raise_opset(m, minimum=18), proto, {"x": random(2, 4)})
    assert model.opset_imports == {"": 13}
    assert notes[0].message == "stays at 13: onnx cannot convert Split to 18 (no adapter for Softmax)"
    with pytest.raises(ModelError, match=r"13 cannot be raised to 18.*Split"):
        raise_opset(load(proto), 18)


def test_old_opset_that_cannot_be_converted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.version_converter, "convert_version", failing)
    with pytest.raises(ModelError, match=r"11 cannot be raised to 17.*ReduceSum"):
        raise_opset(load(build(REDUCE, opset=11, w=random(1, 8))))


def in_training(outputs: str, opset: int = 13) -> onnx.ModelProto:
    """A batch normalization that says by its outputs that it normalizes by the batch at hand."""
    text = f"g (float[1,2,4] x) => ({outputs}) {{ y, m, v, sm, sv = BatchNormalization(x, s, b, mean, var) }}"
    ones = np.ones(2, np.float32)
    return build(text, opset=opset, s=ones, b=ones, mean=5 * ones, var=9 * ones)


@pytest.mark.parametrize("opset", [7, 9, 13])
@pytest.mark.parametrize("outputs", ["float[1,2,4] y", "float[1,2,4] y, float[2] m, float[2] v"])
def test_training_batchnorm_of_old_opsets_says_so(outputs: str, opset: int) -> None:
    proto = in_training(outputs, opset)
    model = load(proto)
    raise_opset(model)
    assert model.opset_imports[""] == 17
    (node,) = model.graph
    assert node.attributes.get_int("training_mode", 0) == 1 and len(node.outputs) == 3
    x = {"x": random(1, 2, 4) * 3}
    np.testing.assert_array_equal(run(to_proto(model), x)[0], run(proto, x)[0])


def test_statistics_of_the_batch_that_are_read_keep_an_old_opset() -> None:
    model = load(in_training("float[1,2,4] y, float[2] sm"))
    notes = raise_opset(model)
    assert "stays at 13" in notes[0].message
    assert ops(model) == ["BatchNormalization"]


def test_no_standard_operators_at_all() -> None:
    proto = build("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.node[0].domain = proto.opset_import[0].domain = "mine"
    model = load(proto)
    assert raise_opset(model) == []
    assert model.opset_imports == {"mine": 17, "": 17}


def test_scan_of_opset_8_is_refused() -> None:
    text = """g (float[1,2] i, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
        y, z = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] n) => (float[2] o, float[2] p) {
            o = Add(s, n) \n p = Neg(o) }>(i, x) }"""
    proto = build(text, opset=8, ir_version=3)
    proto.graph.node[0].input.insert(0, "")
    with pytest.raises(ModelError, match="Scan of opset 8"):
        raise_opset(load(proto))


def test_the_converter_says_nothing_that_is_the_default() -> None:
    """An LSTM of opset 12 has no layout; onnx's converter writes ``layout = 0``, which not every reader knows."""
    text = """g (float[4,1,3] x, bool c) => (float[4,1,1,2] y, float[4,1] m, float[4,1,1,2] z) {
        y = LSTM <hidden_size = 2> (x, w, r)
        m = ReduceSum <axes = [2], keepdims = 0> (x)
        z = If (c) <then_branch = a () => (float[4,1,1,2] p) { p = LSTM <hidden_size = 2> (x, w, r) },
                    else_branch = b () => (float[4,1,1,2] q) { q = Neg (y) }>
    }"""
    proto = build(text, opset=12, w=random(1, 8, 3), r=random(1, 8, 2))
    model, _ = apply(raised, proto, {"x": random(4, 1, 3), "c": np.array(True)})
    layers = [node for node in all_nodes(model) if node.op_type == "LSTM"]
    assert [set(node.attributes) for node in layers] == [{"hidden_size"}] * 2
