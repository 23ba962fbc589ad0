from __future__ import annotations

from onnxq.graph.files.load import load
from onnxq.graph.values import filled_values, is_filled
from tests.graph.helpers import build, random
from tests.models import i64


def test_filled_is_what_no_input_changes_but_in_shape() -> None:
    text = """g (float[n,4] x) => (float[m] y) {
        s = Shape(x) zeros = ConstantOfShape(s) part = Slice(zeros, start, end) both = Concat <axis = 0> (part, w)
        mixed = Concat <axis = 0> (zeros, x) y = MatMul(both, v) z = Neg(mixed) }"""
    model = load(build(text, start=i64([0]), end=i64([1]), w=random(1, 4), v=random(4)))
    values = {value.name: value for node in model.graph for value in node.outputs}
    filled = {name for name, value in values.items() if is_filled(value)}
    assert filled == {value.name for value in filled_values(model)}
    assert filled == {"zeros", "part", "both"}
    assert is_filled(model.graph.initializers["w"])
    assert not is_filled(model.graph.inputs[0])
    assert not is_filled(None)


def test_long_chains_are_followed_to_their_start() -> None:
    lines = [f"t{k + 1} = Concat <axis = 0> (t{k}, w)" for k in range(3000)]
    text = "g (int64[1] x) => (float[N] t3000) { t0 = ConstantOfShape (x)\n" + "\n".join(lines) + "}"
    model = load(build(text, w=random(1)))
    assert is_filled(model.graph.outputs[0])
    assert len(filled_values(model)) == 3001
