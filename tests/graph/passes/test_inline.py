from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import to_proto
from onnxq.graph.namer import unique_names
from onnxq.graph.note import Note
from onnxq.graph.passes.inline import inline_functions
from onnxq.graph.passes.normalize import normalize
from tests.graph.helpers import apply, ops, random, run

FEEDS = {"x": random(4)}


def change(model: ir.Model) -> list[Note]:
    return [*inline_functions(model), *unique_names(model)]


def parse(
    version: int = 17, body: str = "t = Neg(a) \n b = Relu(t)", calls: str = "h = mine.f(x) \n y = mine.f(h)"
) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[4] x) => (float[4] y) {{ {calls} }}
        <domain: "mine", opset_import: ["" : {version}]>
        f (a) => (b) {{ {body} }}""")


def test_each_call_gets_names_of_its_own() -> None:
    model, notes = apply(change, parse(), FEEDS)
    assert ops(model) == ["Neg", "Relu", "Neg", "Relu"]
    assert not model.functions
    assert "mine::f" in notes[0].message


def test_function_of_an_older_opset_is_converted() -> None:
    body = "t = ReduceSum <axes = [0], keepdims = 1> (a) \n b = Add(a, t)"
    model = load(parse(11, body))  # onnxruntime itself refuses such a mixture
    change(model)
    check(model)
    once = FEEDS["x"] + FEEDS["x"].sum()
    np.testing.assert_allclose(run(to_proto(model), FEEDS)[0], once + once.sum(), rtol=1e-6)


def test_function_of_a_newer_opset_whose_operators_did_not_change() -> None:
    model = load(parse(19))
    change(model)
    assert model.opset_imports[""] == 19
    np.testing.assert_array_equal(run(to_proto(model), FEEDS)[0], np.maximum(-np.maximum(-FEEDS["x"], 0), 0))


def test_function_in_a_branch() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[4] x, bool c) => (float[4] y) {
            y = If (c) <then_branch = a () => (float[4] p) { p = mine.f(x) },
                        else_branch = b () => (float[4] q) { q = Abs(x) }> }
        <domain: "mine", opset_import: ["" : 17]>
        f (a) => (b) { t = Neg(a) \n b = Relu(t) }""")
    model, _ = apply(change, proto, {**FEEDS, "c": np.array(True)})
    assert sorted(ops(model)) == ["Abs", "If", "Neg", "Relu"]


def test_functions_that_nothing_calls_are_dropped() -> None:
    model, notes = apply(change, parse(calls="y = Abs(x)"), FEEDS)
    assert not model.functions
    assert "nothing calls" in notes[0].message


def test_no_functions_no_note() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Abs(x) }'
    )
    assert inline_functions(load(proto)) == []


def test_functions_in_a_circle() -> None:
    with pytest.raises(ModelError, match="inlined"):
        inline_functions(load(parse(body="b = mine.f(a)")))


@pytest.mark.parametrize("own", [14, 17])
def test_functions_to_keep(own: int) -> None:
    """They stay functions, and declare the model's opset; the others are inlined."""
    proto = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2] x) => (float[2] y) {{ a = mine.Keep (x)  b = mine.Drop (a)  y = mine.Keep (b) }}
        <domain: "mine", opset_import: ["" : {own}]>
        Keep (x) => (y) {{ y = Round (x) }}
        <domain: "mine", opset_import: ["" : 17]>
        Drop (x) => (y) {{ y = Neg (x) }}
        """
    )
    model = load(proto)
    normalize(model, keep=[("mine", "Keep")])
    assert ops(model) == ["Keep", "Neg", "Keep"]
    assert [function.opset_imports for function in model.functions.values()] == [{"": 17}]
    x = np.array([0.4, 1.6], np.float32)
    np.testing.assert_array_equal(run(to_proto(model), {"x": x})[0], run(proto, {"x": x})[0])
    normalize(model)
    assert ops(model) == ["Round", "Neg", "Round"]
    assert not model.functions
