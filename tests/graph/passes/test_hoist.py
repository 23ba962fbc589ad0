from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.hoist import hoist
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.values import STANDS_FOR
from tests.graph.helpers import Array, apply, build, ops, random
from tests.models import f32, i64

CONSTANTS: dict[str, Array] = {
    "w": random(6, 4, 1, 3),
    "d": random(6, 6),
    "c": 1 + random(6, seed=1) ** 2,
    "c3": 1 + random(1, 6, 1, seed=2) ** 2,
    "c2": 1 + random(6, 1, seed=3) ** 2,
    "one": f32(0.7),
    "row": 1 + random(8, seed=4) ** 2,
    "two": i64([2]),
    "zero": i64([0]),
    "long": i64([2, 3, 8]),
    "flat": i64([2, -1]),
    "low": f32(0),
    "high": f32(6),
}


def change(model: ir.Model) -> list[Note]:
    return [*infer_shapes(model), *hoist(model)]


def conv(behind: str, shape: str = "2,6,8") -> str:
    """A one-dimensional convolution as converters write it, and something behind it."""
    return f"g (float[2,4,1,10] x) => (float[{shape}] y) {{ \n v = Conv(x, w) \n s = Squeeze(v, two) \n {behind} \n }}"


@pytest.mark.parametrize(
    "after",
    [
        "Relu(s)", "Clip(s, low, high)", "Add(s, c3)", "Mul(c2, s)", "Sub(one, s)", "Div(s, c3)", "PRelu(s, c2)",
        "Mul(s, row)", "Max(s, one)",
    ],
)  # fmt: skip
def test_what_stands_behind_a_squeeze_stands_behind_the_layer(after: str) -> None:
    model, notes = apply(change, build(conv(f"y = {after}"), **CONSTANTS), {"x": random(2, 4, 1, 10)})
    assert ops(model) == ["Conv", after.split("(")[0], "Squeeze"]
    assert model.graph[-1].outputs[0].name == "y"
    assert notes[-1] == Note("hoist", "", "1 element-wise nodes compute right behind their layer")


@pytest.mark.parametrize("after", ["Relu(s)", "Add(s, c3)", "Mul(c2, s)", "Sub(one, s)", "Mul(row, s)"])
def test_what_stands_behind_an_unsqueeze_does_too(after: str) -> None:
    text = f"""g (float[2,4,1,10] x) => (float[1,2,6,1,8] y) {{
        v = Conv(x, w) \n s = Unsqueeze(v, zero) \n y = {after.replace("c3", "c4").replace("c2", "c4")} }}"""
    constants = {**CONSTANTS, "c4": 1 + random(1, 6, 1, 1, seed=2) ** 2}
    model, _ = apply(change, build(text, **constants), {"x": random(2, 4, 1, 10)})
    assert ops(model) == ["Conv", after.split("(")[0], "Unsqueeze"]


def test_a_whole_chain_follows_a_layer_with_channels_last() -> None:
    behind = "t = Transpose<perm = [0, 2, 1]>(s) \n m = Mul(t, c) \n a = Add(m, c) \n y = Relu(a)"
    model, _ = apply(change, build(conv(behind, "2,8,6"), **CONSTANTS), {"x": random(2, 4, 1, 10)})
    assert ops(model) == ["Conv", "Mul", "Add", "Relu", "Squeeze", "Transpose"]


def test_what_holds_other_numbers_has_another_name() -> None:
    """A comparison by name would take the products for what they were made of; patterns go on by the old names."""
    behind = "t = Transpose<perm = [0, 2, 1]>(s) \n m = Mul(t, c) \n a = Add(m, c) \n y = Relu(a)"
    given = build(conv(behind, "2,8,6"), **CONSTANTS)
    model, _ = apply(change, given, {"x": random(2, 4, 1, 10)})
    made = {node.op_type: node for node in model.graph}
    names = {op: node.outputs[0].name for op, node in made.items()}
    assert names["Conv"] == "v" and names["Transpose"] == "y"
    assert not {names[op] for op in ("Mul", "Add", "Relu", "Squeeze")} & {"s", "t", "m", "a", "y"}
    former = {op: node.meta[STANDS_FOR] for op, node in made.items() if op != "Conv"}
    for op, name in {"Squeeze": "s", "Transpose": "t", "Mul": "m", "Add": "a", "Relu": "y"}.items():
        assert name in former[op]
        assert [node for node, known in former.items() if name in known] == [op], "one node each"


def test_the_bias_of_a_product_behind_a_reshape() -> None:
    text = (
        "g (float[N,3,6] x) => (float[N,3,6] y) { r = Reshape(x, rows) \n v = MatMul(r, d) \n s = Reshape(v, back) \n "
        "a = Add(s, c) \n y = Relu(a) }"
    )
    proto = build(text, rows=i64([-1, 6]), back=i64([-1, 3, 6]), **CONSTANTS)
    model, _ = apply(change, proto, {"x": random(2, 3, 6)})
    assert ops(model) == ["Reshape", "MatMul", "Add", "Relu", "Reshape"]


@pytest.mark.parametrize(
    "behind",
    [
        "y = Add(s, wide)",  # gives more than it reads
        "r = Relu(s) \n q = Sigmoid(s) \n y = Mul(r, q)",  # the Squeeze is read twice
        "u = Reshape(s, long) \n r = Add(u, along) \n y = Reshape(r, back)",  # a constant that does not fit in front
        "p = Pad(s, pads) \n r = Relu(p) \n y = Slice(r, zero, two, zero)",
    ],
)
def test_what_stays(behind: str) -> None:
    more: dict[str, Array] = {
        "wide": random(3, 2, 6, 8, seed=5),
        "long": i64([2, 8, 6]),
        "along": random(6, seed=6),
        "back": i64([2, 6, 8]),
        "pads": i64([0, 0, 0, 2, 0, 0]),
    }
    proto = build(conv(behind, "3,2,6,8" if "wide" in behind else "2,6,8"), **{**CONSTANTS, **more})
    before = [node.op_type for node in proto.graph.node]
    assert ops(apply(change, proto, {"x": random(2, 4, 1, 10)})[0]) == before


def test_transposes_alone_are_left_to_those_that_cancel() -> None:
    text = (
        "g (float[2,4,1,10] x) => (float[2,1,8,6] y) { v = Conv(x, w) \n t = Transpose<perm = [0, 2, 3, 1]>(v) \n "
        "y = Relu(t) }"
    )
    assert ops(apply(change, build(text, **CONSTANTS), {"x": random(2, 4, 1, 10)})[0]) == ["Conv", "Transpose", "Relu"]


def test_a_layer_output_that_others_need_stays() -> None:
    text = (
        "g (float[2,4,1,10] x) => (float[2,6,8] y, float[2,6,1,8] v) { v = Conv(x, w) \n s = Squeeze(v, two) \n "
        "y = Relu(s) }"
    )
    assert ops(apply(change, build(text, **CONSTANTS), {"x": random(2, 4, 1, 10)})[0]) == ["Conv", "Squeeze", "Relu"]


def test_sizes_of_a_constant_may_be_names() -> None:
    """As where it is an input with a default, too."""
    model = ir.from_proto(build(conv("y = Add(s, c3)"), **CONSTANTS))
    model.graph.initializers["c3"].shape = ir.Shape(["a", "b", "c"])
    change(model)
    assert ops(model) == ["Conv", "Add", "Squeeze"]
