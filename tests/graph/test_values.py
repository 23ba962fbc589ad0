from __future__ import annotations

from onnxq.graph.files.load import load
from onnxq.graph.values import is_filled
from tests.graph.helpers import build, i64, random


def test_filled_is_what_no_input_changes_but_in_shape() -> None:
    text = """g (float[n,4] x) => (float[m] y) {
        s = Shape(x) zeros = ConstantOfShape(s) part = Slice(zeros, start, end) both = Concat <axis = 0> (part, w)
        mixed = Concat <axis = 0> (zeros, x) y = MatMul(both, v) z = Neg(mixed) }"""
    model = load(build(text, start=i64([0]), end=i64([1]), w=random(1, 4), v=random(4)))
    values = {value.name: value for node in model.graph for value in node.outputs}
    filled = {name for name, value in values.items() if is_filled(value)}
    assert filled == {"zeros", "part", "both"}
    assert is_filled(model.graph.initializers["w"])
    assert not is_filled(model.graph.inputs[0])
    assert not is_filled(None)
