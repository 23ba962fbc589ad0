"""A chain of operators that computes HardSwish becomes the operator; nothing else is taken for it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.fuse_hardswish import fuse_hardswish
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import apply, build, ops, random, twice
from tests.models import f32

FEEDS = {"u": 6 * random(2, 3, 8)}
CONSTANTS = {"three": f32(3), "zero": f32(0), "six": f32(6), "sixth": f32(1 / 6), "two": f32(2)}

CHAINS = [
    "a = Add(x, three) \n c = Clip(a, zero, six) \n m = Mul(x, c) \n t = Div(m, six)",
    "a = Add(three, x) \n c = Clip(a, zero, six) \n d = Div(c, six) \n t = Mul(d, x)",
    "a = Add(x, three) \n c = Clip(a, zero, six) \n d = Mul(c, sixth) \n t = Mul(x, d)",
    "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) \n t = Mul(x, h)",
]
OTHERS = [
    "a = Add(x, two) \n c = Clip(a, zero, six) \n m = Mul(x, c) \n t = Div(m, six)",  # another shift
    "h = HardSigmoid <alpha = 0.2, beta = 0.5> (x) \n t = Mul(x, h)",  # the sigmoid of Keras
    "a = Add(x, three) \n c = Clip(a, zero, six) \n t = Mul(x, c)",  # not divided
]


def fuse(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return fuse_hardswish(model)


def text(body: str, outputs: str = "float[2,3,8] y") -> str:
    return f"g (float[2,3,8] u) => ({outputs}) {{ x = Neg(u) \n {body} \n y = Abs(t) }}"


@pytest.mark.parametrize("body", CHAINS)
def test_the_operator_takes_the_place_of_the_chain(body: str) -> None:
    model, notes = apply(fuse, build(text(body), **CONSTANTS), FEEDS, tolerance=2e-6)
    assert ops(model) == ["Neg", "HardSwish", "Abs"]
    node = next(n for n in all_nodes(model) if n.op_type == "HardSwish")
    assert (node.inputs[0].name, node.outputs[0].name) == ("x", "t")  # type: ignore[union-attr]
    assert [note.message for note in notes] == ["1 chains replaced by HardSwish"]


@pytest.mark.parametrize("body", OTHERS)
def test_other_functions_stay(body: str) -> None:
    model, notes = apply(fuse, build(text(body), **CONSTANTS), FEEDS, tolerance=0)
    assert "HardSwish" not in ops(model)
    assert notes == []


def test_a_chain_with_another_reader_inside_stays() -> None:
    outputs = "float[2,3,8] y, float[2,3,8] c"
    model, _ = apply(fuse, build(text(CHAINS[0], outputs), **CONSTANTS), FEEDS, tolerance=0)
    assert "HardSwish" not in ops(model)


def test_a_chain_that_gives_the_graph_output_keeps_its_name() -> None:
    body = CHAINS[0].replace("t = ", "y = ")
    proto = build(f"g (float[2,3,8] x) => (float[2,3,8] y) {{ {body} }}", **CONSTANTS)
    model, _ = apply(fuse, proto, {"x": 6 * random(2, 3, 8)}, tolerance=2e-6)
    assert ops(model) == ["HardSwish"]
    assert model.graph.outputs[0].name == "y"


def test_an_opset_without_the_operator_keeps_the_chain() -> None:
    model, notes = apply(fuse, build(text(CHAINS[0]), opset=13, **CONSTANTS), FEEDS, tolerance=0)
    assert ops(model) == ["Neg", "Add", "Clip", "Mul", "Div", "Abs"]
    assert notes == []


def test_one_behind_another() -> None:
    model, _ = apply(fuse, build(text(twice(CHAINS[0])), **CONSTANTS), FEEDS)
    assert ops(model).count("HardSwish") == 2
